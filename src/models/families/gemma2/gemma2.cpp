// Gemma 2 (Gemma Team 2024): four norms per layer with 1 + w, windows in every other layer, soft
// caps, embeddings times sqrt(hidden size).
#include "models/families/all.h"
#include "models/families/config_json.h"

namespace megatron::models {
namespace gemma2 {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
  "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
  "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 8192,
  "initializer_range": 0.02, "rms_norm_eps": 1e-6, "tie_word_embeddings": true,
  "rope_theta": 10000.0, "attention_bias": false, "attention_dropout": 0.0,
  "query_pre_attn_scalar": 256, "sliding_window": 4096, "final_logit_softcapping": 30.0,
  "attn_logit_softcapping": 50.0})";

constexpr CommonForm kForm{.activation_key = "hidden_activation", .attention_bias = true};

DecoderValue read(const Json& j) {
  refuse_unless(j, "use_bidirectional_attention", false);
  DecoderValue value = read_common(j, kForm);
  read_gemma(j, value);
  for (LayerValue& layer : value.layers)
    layer.attention()->soft_cap = number(j, "attn_logit_softcapping", 0);
  value.logits_soft_cap = number(j, "final_logit_softcapping", 0);
  read_windows(j, value, [](int64_t layer) { return layer % 2 == 0; });
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common(value, kForm);
  const double cap = value.first_attention()->soft_cap;
  j.set("architectures", Json::Array{"Gemma2ForCausalLM"});
  j.set("attn_logit_softcapping", cap > 0 ? Json(cap) : Json());
  j.set("final_logit_softcapping",
        value.logits_soft_cap > 0 ? Json(value.logits_soft_cap) : Json());
  write_windows(value, j);
  write_gemma(value, j);
  return j;
}

}  // namespace gemma2

const DecoderFamily kGemma2 = {.name = "gemma2",
                               .models = "Gemma 2",
                               .read = gemma2::read,
                               .write = gemma2::write,
                               .tensors = gemma_tensors,
                               .defaults = gemma2::kDefaults,
                               .score_class = "Gemma2ForSequenceClassification"};

}  // namespace megatron::models
