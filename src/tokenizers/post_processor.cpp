#include "tokenizers/post_processor.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
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

// What becomes of one text or of two: segments, each of which the next processor takes for a text.
using Segment = std::vector<InputPiece>;
using Segments = std::vector<Segment>;

void check_count(size_t pieces, const Segments& segments) {
  constexpr size_t kMax = 4096;
  for (const Segment& segment : segments) pieces += segment.size();
  MG_CHECK(pieces <= kMax, "post_processor: more than {} tokens are put around a text", kMax);
}

int32_t piece_type(const Json& piece) {
  const Json* type = piece.find("type_id");
  const int64_t value = type == nullptr ? 0 : type->as_integer();
  MG_CHECK(value >= 0 && value <= std::numeric_limits<int32_t>::max(),
           "post_processor has type_id {}; it must lie in [0, 2^31)", value);
  return static_cast<int32_t>(value);
}

Segment special_tokens(const Json& piece, const Json& tokens, const Segments& before) {
  Segment segment;
  for (const Json& id : tokens[piece["id"].as_string()]["ids"].as_array()) {
    check_count(segment.size() + 1, before);
    segment.push_back({.token = checked_id(id), .type = piece_type(piece)});
  }
  return segment;
}

// As the original has it, a text that a template names gets the template's type, with all that
// earlier processors have put around it. It has no template for more than two: nothing remains.
Segments apply_template(const Json& settings, const Segments& texts) {
  if (texts.size() > 2) return {};
  static const Json kPair =
      Json::Array{Json::Object{{"Sequence", Json::Object{{"id", "A"}, {"type_id", 0}}}},
                  Json::Object{{"Sequence", Json::Object{{"id", "B"}, {"type_id", 1}}}}};
  const bool single = texts.size() == 1;
  const Json* pair = single ? nullptr : settings.find("pair");
  Segments segments;
  for (const Json& piece : (single ? settings["single"] : pair ? *pair : kPair).as_array()) {
    const Json* const sequence = piece.find("Sequence");
    if (sequence == nullptr) {
      segments.push_back(
          special_tokens(piece["SpecialToken"], settings["special_tokens"], segments));
      continue;
    }
    const std::string& name = (*sequence)["id"].as_string();
    MG_CHECK(name == "A" || (name == "B" && !single),
             "the template for {} has the sequence '{}'; it may have {}",
             single ? "a single sequence" : "pairs", name, single ? "A" : "A and B");
    Segment text = texts[name == "A" ? 0 : 1];
    for (InputPiece& of_text : text) of_text.type = piece_type(*sequence);
    check_count(text.size(), segments);
    segments.push_back(std::move(text));
  }
  return segments;
}

int32_t pair_id(const Json& pair) {
  const Json::Array& items = pair.as_array();
  MG_CHECK(items.size() == 2, "post_processor: expected [token, id], found {} items", items.size());
  return checked_id(items[1]);
}

// Puts the beginning token before the first segment and the end token after each. RoBERTa also has
// an end token before each further segment, and only type 0.
Segments put_around(const Json& settings, bool roberta, Segments segments) {
  const InputPiece begin{.token = pair_id(settings["cls"])};
  for (size_t i = 0; i < segments.size(); ++i) {
    Segment& segment = segments[i];
    const InputPiece end{.token = pair_id(settings["sep"]), .type = i == 0 || roberta ? 0 : 1};
    if (roberta)
      for (InputPiece& piece : segment) piece.type = 0;
    if (i == 0) segment.insert(segment.begin(), begin);
    else if (roberta) segment.insert(segment.begin(), end);
    segment.push_back(end);
  }
  check_count(0, segments);
  return segments;
}

Segments process(const Json& settings, Segments segments) {
  if (settings.is_null()) return segments;
  const std::string& type = settings["type"].as_string();
  if (type == "ByteLevel") return segments;
  if (type == "TemplateProcessing") return apply_template(settings, segments);
  if (type == "RobertaProcessing" || type == "BertProcessing")
    return put_around(settings, type == "RobertaProcessing", std::move(segments));
  if (type == "Sequence") {
    for (const Json& step : settings["processors"].as_array())
      segments = process(step, std::move(segments));
    return segments;
  }
  fail(
      "post-processor '{}' is not supported; supported are ByteLevel, TemplateProcessing, "
      "RobertaProcessing, BertProcessing and Sequence",
      type);
}

std::vector<InputPiece> joined(const Segments& segments) {
  std::vector<InputPiece> pieces;
  for (const Segment& segment : segments)
    pieces.insert(pieces.end(), segment.begin(), segment.end());
  return pieces;
}

// "trim_offsets" and "add_prefix_space", both true by default, of all processors in order.
void add_trims(const Json& settings, std::vector<bool>& trims) {
  if (settings.is_null()) return;
  const std::string& type = settings["type"].as_string();
  if (type == "Sequence")
    for (const Json& step : settings["processors"].as_array()) add_trims(step, trims);
  if (type != "ByteLevel" && type != "RobertaProcessing") return;
  const auto flag = [&](std::string_view key) {
    const Json* value = settings.find(key);
    return !value || value->as_bool();
  };
  if (flag("trim_offsets")) trims.push_back(flag("add_prefix_space"));
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

JoinedTexts PostProcessor::join(std::span<const int32_t> first,
                                std::span<const int32_t> second) const {
  JoinedTexts joined;
  std::array<std::optional<size_t>, 2> begins;
  for (const InputPiece& piece : pair) {
    const bool token = piece.text == InputPiece::kToken;
    const std::span<const int32_t> ids = token             ? std::span(&piece.token, 1)
                                         : piece.text == 0 ? first
                                                           : second;
    if (!token && !begins[static_cast<size_t>(piece.text)])
      begins[static_cast<size_t>(piece.text)] = joined.size();
    joined.ids.insert(joined.ids.end(), ids.begin(), ids.end());
    joined.types.resize(joined.size(), piece.type);
  }
  MG_CHECK(begins[0] && begins[1],
           "the tokenizer's template for pairs (post_processor in tokenizer.json) lacks sequence "
           "{}, so that it cannot join two texts",
           begins[0] ? "B" : "A");
  joined.first = *begins[0];
  joined.second = *begins[1];
  return joined;
}

PostProcessor make_post_processor(const Json& settings) {
  PostProcessor result;
  add_trims(settings, result.trims);
  bool behind = false;
  for (const InputPiece& piece : joined(process(settings, {{{.text = 0}}}))) {
    const bool text = piece.text == 0;
    MG_CHECK(!text || !behind,
             "the template for a single sequence must contain sequence A once; it has it twice");
    behind = behind || text;
    if (!text) (behind ? result.after : result.before).push_back(piece.token);
  }
  MG_CHECK(behind, "the template for a single sequence does not contain sequence A");
  result.pair = joined(process(settings, {{{.text = 0}}, {{.text = 1, .type = 1}}}));
  return result;
}

std::vector<int32_t> JoinedTexts::types_of_model(int64_t token_types) const {
  if (token_types < 2) return {};
  for (const int32_t type : types)
    MG_CHECK(type < token_types,
             "the tokenizer gives tokens of pairs the type {} (type_id in its post_processor), but "
             "the model has {} token types (type_vocab_size)",
             type, token_types);
  return types;
}

JoinedTexts Codec::join(std::span<const int32_t> first, std::span<const int32_t> second) const {
  const PostProcessor plain{
      .before = {}, .after = {}, .pair = {{.text = 0}, {.text = 1, .type = 1}}, .trims = {}};
  return plain.join(first, second);
}

}  // namespace megatron::tokenizers
