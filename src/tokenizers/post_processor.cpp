#include "tokenizers/post_processor.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizers/byte_level.h"
#include "tokenizers/unicode/unicode.h"
#include "tokenizers/vocabulary.h"

namespace megatron::tokenizers {
namespace {

int32_t checked_id(const Json& value) {
  const int64_t id = value.as_integer();
  MG_CHECK(id >= 0 && id <= Vocabulary::kMaximumId, "post_processor has id {}; ids are 0 to {}", id,
           Vocabulary::kMaximumId);
  return static_cast<int32_t>(id);
}

void check_count(size_t tokens) {
  constexpr size_t kMax = 4096;
  MG_CHECK(tokens <= kMax, "post_processor: more than {} tokens are put around a text", kMax);
}

PostProcessor make_template(const Json& settings) {
  PostProcessor result;
  bool behind = false;
  for (const Json& piece : settings["single"].as_array()) {
    if (const Json* sequence = piece.find("Sequence")) {
      const std::string& name = (*sequence)["id"].as_string();
      MG_CHECK(name == "A" && !behind,
               "the template for a single sequence must contain sequence A once; it has '{}'{}",
               name, behind ? " after A" : "");
      behind = true;
      continue;
    }
    const std::string& name = piece["SpecialToken"]["id"].as_string();
    for (const Json& id : settings["special_tokens"][name]["ids"].as_array()) {
      check_count(result.before.size() + result.after.size() + 1);
      (behind ? result.after : result.before).push_back(checked_id(id));
    }
  }
  MG_CHECK(behind, "the template for a single sequence does not contain sequence A");
  return result;
}

int32_t pair_id(const Json& pair) {
  const Json::Array& items = pair.as_array();
  MG_CHECK(items.size() == 2, "post_processor: expected [token, id], found {} items", items.size());
  return checked_id(items[1]);
}

PostProcessor make_sequence(const Json& settings) {
  PostProcessor result;
  for (const Json& step : settings["processors"].as_array()) {
    const PostProcessor outer = make_post_processor(step);
    result.before.insert(result.before.begin(), outer.before.begin(), outer.before.end());
    result.after.insert(result.after.end(), outer.after.begin(), outer.after.end());
    result.trims.insert(result.trims.end(), outer.trims.begin(), outer.trims.end());
  }
  return result;
}

// "trim_offsets" and "add_prefix_space", both true by default.
std::vector<bool> read_trims(const Json& settings) {
  const auto flag = [&](std::string_view key) {
    const Json* value = settings.find(key);
    return !value || value->as_bool();
  };
  if (!flag("trim_offsets")) return {};
  return {flag("add_prefix_space")};
}

bool is_space_letter(char32_t c) { return c == kByteLetters[' '] || is_white_space(c); }

// Numbers of white space characters at the beginning and at the end of a token.
std::pair<uint32_t, uint32_t> count_spaces(std::string_view token) {
  uint32_t leading = 0, trailing = 0;
  for (size_t at = 0; at < token.size() && is_space_letter(character_at(token, at)); ++leading)
    at += static_cast<size_t>(character_size(token[at]));
  for (size_t end = token.size(); end > 0; ++trailing) {
    const size_t start = character_start_before(token, end);
    if (!is_space_letter(character_at(token, start))) break;
    end = start;
  }
  return {leading, trailing};
}

}  // namespace

void PostProcessor::trim(std::span<Range> offsets,
                         FunctionRef<std::string_view(size_t i)> text_of) const {
  for (const bool has_prefix_space : trims) {
    for (size_t i = 0; i < offsets.size(); ++i) {
      auto [leading, trailing] = count_spaces(text_of(i));
      Range& range = offsets[i];
      if (leading == 1 && has_prefix_space && (i == 0 || range.begin == 0)) leading = 0;
      range.begin = std::min(range.begin + leading, range.end);
      if (trailing > 0 && range.end >= trailing)
        range.end = std::max(range.end - trailing, range.begin);
    }
  }
}

PostProcessor make_post_processor(const Json& settings) {
  if (settings.is_null()) return {};
  const std::string& type = settings["type"].as_string();
  if (type == "ByteLevel") return {.before = {}, .after = {}, .trims = read_trims(settings)};
  if (type == "TemplateProcessing") return make_template(settings);
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    PostProcessor result{{pair_id(settings["cls"])}, {pair_id(settings["sep"])}, {}};
    if (type == "RobertaProcessing") result.trims = read_trims(settings);
    return result;
  }
  if (type == "Sequence") return make_sequence(settings);
  fail(
      "post-processor '{}' is not supported; supported are ByteLevel, TemplateProcessing, "
      "RobertaProcessing, BertProcessing and Sequence",
      type);
}

}  // namespace megatron::tokenizers
