#include "tokenizers/transformers/class_name.h"

#include <array>

namespace megatron::tokenizers {
namespace {

// Words between spaces.
bool has_word(std::string_view words, std::string_view word) {
  for (size_t at = 0; (at = words.find(word, at)) != words.npos; at += word.size() + 1) {
    const size_t end = at + word.size();
    if ((at == 0 || words[at - 1] == ' ') && (end == words.size() || words[end] == ' '))
      return !word.empty();
  }
  return false;
}

struct Registered {
  std::string_view name, model_types;
};
// Classes by model_type. Models whose classes are not known here are omitted, because their
// directories name the class.
constexpr auto kRegistered = std::to_array<Registered>({
    {kPlainClass,
     "arctic aria beam bigbird_pegasus camembertv2-base canary chatlm cohere_asr ernie4_5 "
     "ernie4_5_moe flex_olmo fuyu glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe glm_image glmasr "
     "got_ocr2 gpt_bigcode gradium_phonon_tts granite granitemoe granitemoehybrid granitemoeshared "
     "h2ovl_chat hyperclovax hyperclovax_vlm internlm2 internlm3 iquestcoder jamba kimi_k25 "
     "kimi_linear kosmos-2 llava llava_next mimo_v2_flash minicpm3 minicpm_ocr minicpmv "
     "minicpmv4_6 minicpmv4_7 minimax_m2 ministral ministral3 mistral mistral3 mistral_large4 "
     "mixtral modernbert modernbert-decoder molmo molmo2 nemo_speechlm nemotron nvfp4 "
     "nystromformer olmo2 olmo3 olmo_hybrid omniasr opencua openvla paddleocr_vl pegasus_x "
     "persimmon phi3 phi3_v phimoe pix2struct pixtral pocket_tts smolvlm stablelm step3_vl umt5 "
     "vipllava voxtral voxtral_realtime xlm-roberta-xl"},
    {"LlamaTokenizer", "idefics idefics2"},
    {"GemmaTokenizer",
     "diffusion_gemma gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma "
     "shieldgemma2 t5gemma zaya"},
    {"GPT2Tokenizer",
     "blip-2 codegen dbrx emu3 gpt2 gpt_neo gptj hyperclovax_vision_v2 instructblip "
     "instructblipvideo jais2 opt phi starcoder2"},
    {"GPTNeoXTokenizer", "falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv xlstm"},
    {"Qwen2Tokenizer",
     "audioflamingo3 colqwen2 cosmos3_omni dots3_note fun_asr_nano hunyuan_vl internvl lighton_ocr "
     "moss_transcribe_diarize ovis2 qianfan_ocr qwen2 qwen2_5_omni qwen2_5_vl qwen2_audio "
     "qwen2_moe "
     "qwen2_vl qwen3 qwen3_asr qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe "
     "vibevoice"},
    {"Qwen3_5Tokenizer", "qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen4_exp"},
    {"CohereTokenizer", "aya_vision cohere cohere2"},
    {"CodeLlamaTokenizer", "code_llama"},
});

// Models whose published configurations name a wrong class.
constexpr std::string_view kWronglyNamed =
    "arctic chatlm ernie4_5 ernie4_5_moe fuyu h2ovl_chat hyperclovax hyperclovax_vlm "
    "hyperclovax_vision_v2 internlm2 internlm3 iquestcoder jamba llava llava_next minicpm3 "
    "minicpmv minimax_m2 modernbert modernbert-decoder molmo molmo2 nemotron nvfp4 opencua openvla "
    "paddleocr_vl phi3 phi3_v phimoe qwen2 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen4_exp step3_vl "
    "vipllava cohere_asr camembertv2-base siglip2 smolvlm";

constexpr std::string_view kKnown =
    "LlamaTokenizer GemmaTokenizer GPT2Tokenizer GPTNeoXTokenizer Qwen2Tokenizer Qwen3_5Tokenizer "
    "CodeGenTokenizer";

constexpr std::string_view kOther =
    "AlbertTokenizer BarthezTokenizer BartTokenizer BartphoTokenizer BertGenerationTokenizer "
    "BertJapaneseTokenizer BertTokenizer BertweetTokenizer BigBirdTokenizer BioGptTokenizer "
    "BlenderbotSmallTokenizer BlenderbotTokenizer CLIPTokenizer CTRLTokenizer CamembertTokenizer "
    "CodeLlamaTokenizer CohereTokenizer CpmAntTokenizer CpmTokenizer DPRContextEncoderTokenizer "
    "DPRQuestionEncoderTokenizer DPRReaderTokenizer DebertaTokenizer DebertaV2Tokenizer "
    "DistilBertTokenizer ElectraTokenizer EsmTokenizer EsmcTokenizer FSMTTokenizer "
    "FlaubertTokenizer FunnelTokenizer GPTNeoXJapaneseTokenizer GPTSw3Tokenizer HerbertTokenizer "
    "LEDTokenizer LasrTokenizer LayoutLMv2Tokenizer LayoutLMv3Tokenizer LayoutXLMTokenizer "
    "LongformerTokenizer LukeTokenizer M2M100Tokenizer MBart50Tokenizer MBartTokenizer "
    "MLukeTokenizer MPNetTokenizer MVPTokenizer MarianTokenizer MarkupLMTokenizer "
    "MobileBertTokenizer MvpTokenizer NllbTokenizer NougatTokenizer OpenAIGPTTokenizer "
    "PLBartTokenizer PegasusTokenizer PhobertTokenizer ProphetNetTokenizer ReformerTokenizer "
    "RemBertTokenizer RoFormerTokenizer RobertaTokenizer SeamlessM4TTokenizer Siglip2Tokenizer "
    "SiglipTokenizer Speech2TextTokenizer SpeechT5Tokenizer SplinterTokenizer T5Tokenizer "
    "Tipsv2Tokenizer UdopTokenizer VideoPrismTokenizer WhisperTokenizer XGLMTokenizer "
    "XLMRobertaTokenizer XLMTokenizer XLNetTokenizer";

std::string_view registered(std::string_view model_type) {
  for (const Registered& one : kRegistered)
    if (has_word(one.model_types, model_type)) return one.name;
  return "";
}

std::string without_fast(std::string name) {
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  return name;
}

// The class of that name; TokenizersBackend for those that transformers lacks.
std::string found(const std::string& name) {
  return has_word(kKnown, name) || has_word(kOther, name) ? name : std::string(kPlainClass);
}

std::string text(const Json& value) { return value.is_string() ? value.as_string() : ""; }

}  // namespace

std::string class_name(const TokenConfiguration& configuration, std::string_view json) {
  const auto model = [&](std::string_view key) {
    const Json* value = configuration.model_config().find(key);
    return value ? text(*value) : "";
  };
  std::string named = without_fast(text(configuration.member("tokenizer_class")));
  if (named.empty()) named = without_fast(model("tokenizer_class"));
  const std::string model_type = model("model_type");
  const std::string_view by_model = registered(model_type);
  if (named.empty()) return by_model.empty() ? std::string(kPlainClass) : std::string(by_model);
  if (configuration.is_set("auto_map")) return found(named);
  const bool wrongly_named = has_word(kWronglyNamed, model_type);
  // Llama 3 and others name LlamaTokenizer, which has no byte-level BPE.
  if (named == "LlamaTokenizer" && !wrongly_named && json.find("\"ByteLevel\"") != json.npos)
    return std::string(kPlainClass);
  if (by_model.empty() || by_model == named) return found(named);
  return by_model == kPlainClass ? std::string(kPlainClass)
                                 : found(wrongly_named ? std::string(by_model) : named);
}

bool is_other_class(std::string_view name) { return has_word(kOther, name); }

}  // namespace megatron::tokenizers
