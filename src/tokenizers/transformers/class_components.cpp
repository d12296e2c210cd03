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

Json sequence(const char* key, Json::Array steps) {
  return Json::Object{{"type", "Sequence"}, {key, std::move(steps)}};
}
Json replace(const char* from, const char* to) {
  return Json::Object{
      {"type", "Replace"}, {"pattern", Json::Object{{"String", from}}}, {"content", to}};
}
Json split(Json pattern, const char* behavior) {
  return Json::Object{{"type", "Split"},
                      {"pattern", std::move(pattern)},
                      {"behavior", behavior},
                      {"invert", false}};
}

// A model of another kind keeps its tokens, and has no merges.
void set_bpe(Definition& definition, Json unknown, bool fuse_unknown, bool byte_fallback,
             Json affix) {
  definition.model = "BPE";
  definition.scores.clear();
  definition.settings.set("model", Json::Object{{"type", "BPE"},
                                                {"dropout", nullptr},
                                                {"unk_token", std::move(unknown)},
                                                {"continuing_subword_prefix", affix},
                                                {"end_of_word_suffix", affix},
                                                {"fuse_unk", fuse_unknown},
                                                {"byte_fallback", byte_fallback},
                                                {"ignore_merges", false}});
}

void apply_llama(TokenConfiguration& c, Definition& d) {
  set_tokens(c, {{"unk_token", "<unk>"}, {"bos_token", "<s>"}, {"eos_token", "</s>"}});
  const bool spaces = c.member("add_prefix_space").is_null() || is_true(c, "add_prefix_space");
  const char* scheme = !spaces ? "never" : is_true(c, "legacy") ? "always" : "first";
  set_bpe(d, nullptr, true, true, nullptr);
  d.settings.set("normalizer", nullptr);
  d.settings.set("pre_tokenizer", Json::Object{{"type", "Metaspace"},
                                               {"replacement", kMark},
                                               {"prepend_scheme", scheme},
                                               {"split", false}});
  Json::Array steps = {replace(kMark, " "), Json::Object{{"type", "ByteFallback"}},
                       Json::Object{{"type", "Fuse"}}};
  if (spaces)
    steps.push_back(Json::Object{{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  d.settings.set("decoder", sequence("decoders", std::move(steps)));
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
  set_bpe(d, name, true, true, nullptr);
  d.settings.set("normalizer", replace(" ", kMark));
  d.settings.set("pre_tokenizer", split(Json::Object{{"String", " "}}, "MergedWithPrevious"));
  d.settings.set("decoder",
                 sequence("decoders", {replace(kMark, " "), Json::Object{{"type", "ByteFallback"}},
                                       Json::Object{{"type", "Fuse"}}}));
}

void apply_gpt2(TokenConfiguration& c, Definition& d, Json normalizer) {
  set_bpe(d, nullptr, false, false, "");
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
  set_bpe(d, nullptr, false, false, "");
  d.settings.set("normalizer", Json::Object{{"type", "NFC"}});
  d.settings.set(
      "pre_tokenizer",
      sequence("pretokenizers", {split(Json::Object{{"Regex", pattern}}, "Isolated"),
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
