#include "tokenizers/transformers/class_components.h"

#include <initializer_list>
#include <utility>

#include "base/error.h"

namespace megatron::tokenizers {
namespace {

using Tokens = std::initializer_list<std::pair<const char*, const char*>>;  // null: none

constexpr const char* kEnd = "<|endoftext|>";
constexpr const char* kMark = "\xe2\x96\x81";

void set_tokens(TokenConfiguration& configuration, const Tokens& tokens) {
  for (const auto& [name, token] : tokens)
    configuration.set_default(name, token ? Json(token) : Json());
}

// Returns false if the member is absent or null.
bool is_true(const TokenConfiguration& configuration, std::string_view key) {
  const Json& value = configuration.member(key);
  MG_CHECK(value.is_null() || value.is_bool(),
           "tokenizer_config.json: '{}' is {}; it must be true or false", key, value.dump());
  return value.is_bool() && value.as_bool();
}

// A model of another kind keeps its tokens, and has no merges.
void set_bpe(Definition& definition, BpeSettings settings) {
  definition.model = "BPE";
  definition.scores.clear();
  definition.settings.set("model", bpe_settings(std::move(settings)));
}

void apply_llama(TokenConfiguration& c, Definition& d) {
  set_tokens(c, {{"unk_token", "<unk>"}, {"bos_token", "<s>"}, {"eos_token", "</s>"}});
  const bool spaces = c.member("add_prefix_space").is_null() || is_true(c, "add_prefix_space");
  const char* scheme = !spaces ? "never" : is_true(c, "legacy") ? "always" : "first";
  set_bpe(d, {.fuse_unknown = true, .byte_fallback = true});
  d.settings.set("normalizer", nullptr);
  d.settings.set("pre_tokenizer", metaspace_settings(scheme));
  Json::Array steps = {replace_settings("String", kMark, " "),
                       Json::Object{{"type", "ByteFallback"}}, Json::Object{{"type", "Fuse"}}};
  if (spaces)
    steps.push_back(Json::Object{{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  d.settings.set("decoder", sequence_settings("decoders", std::move(steps)));
}

void apply_gemma(TokenConfiguration& c, Definition& d) {
  set_tokens(c, {{"unk_token", "<unk>"},
                 {"bos_token", "<bos>"},
                 {"eos_token", "<eos>"},
                 {"pad_token", "<pad>"},
                 {"mask_token", "<mask>"}});
  const Json& unknown = c.member("unk_token");
  const std::string name =
      unknown.is_null()
          ? "None"
          : read_configured_token(unknown, "tokenizer_config.json", "unk_token").token.content;
  set_bpe(d, {.unknown = name, .fuse_unknown = true, .byte_fallback = true});
  d.settings.set("normalizer", replace_settings("String", " ", kMark));
  d.settings.set("pre_tokenizer", split_settings("String", " ", "MergedWithPrevious"));
  d.settings.set("decoder", sequence_settings("decoders", {replace_settings("String", kMark, " "),
                                                           Json::Object{{"type", "ByteFallback"}},
                                                           Json::Object{{"type", "Fuse"}}}));
}

void apply_gpt2(TokenConfiguration& c, Definition& d, Json normalizer) {
  set_bpe(d, {.affix = ""});
  d.settings.set("normalizer", std::move(normalizer));
  d.settings.set("pre_tokenizer", byte_level_settings(is_true(c, "add_prefix_space"), true));
  d.settings.set("decoder", byte_level_settings(true, true));
}

// letters: pattern of the letters that words consist of.
void apply_qwen(TokenConfiguration& c, Definition& d, std::string_view letters,
                std::string_view other_than) {
  set_tokens(
      c, {{"unk_token", kEnd}, {"bos_token", nullptr}, {"eos_token", kEnd}, {"pad_token", kEnd}});
  std::string pattern = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?)";
  pattern.append(letters)
      .append(R"(+|\p{N}| ?[^\s)")
      .append(other_than)
      .append(R"(\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)");
  set_bpe(d, {.affix = ""});
  d.settings.set("normalizer", Json::Object{{"type", "NFC"}});
  d.settings.set("pre_tokenizer",
                 sequence_settings("pretokenizers",
                                   {split_settings("Regex", pattern, "Isolated"),
                                    byte_level_settings(is_true(c, "add_prefix_space"), false)}));
  d.settings.set("decoder", byte_level_settings(true, true));
}

}  // namespace

void apply_class(std::string_view name, TokenConfiguration& c, Definition& d) {
  if (name == "LlamaTokenizer") return apply_llama(c, d);
  if (name == "GemmaTokenizer") return apply_gemma(c, d);
  if (name == "Qwen2Tokenizer") return apply_qwen(c, d, R"(\p{L})", R"(\p{L})");
  if (name == "Qwen3_5Tokenizer") return apply_qwen(c, d, R"([\p{L}\p{M}])", R"(\p{L}\p{M})");
  const bool neox = name == "GPTNeoXTokenizer", code_gen = name == "CodeGenTokenizer";
  if (name != "GPT2Tokenizer" && !neox && !code_gen) return;
  set_tokens(c, {{"unk_token", kEnd},
                 {"bos_token", kEnd},
                 {"eos_token", kEnd},
                 {"pad_token", neox ? "<|padding|>" : nullptr}});
  apply_gpt2(c, d, neox ? Json(Json::Object{{"type", "NFC"}}) : Json());
  if (code_gen && d.member("post_processor").is_null()) {
    Json trims = byte_level_settings(true, true);
    trims.set("trim_offsets", false);
    d.settings.set("post_processor", std::move(trims));
  }
}

}  // namespace megatron::tokenizers
