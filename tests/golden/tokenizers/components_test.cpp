// Compares random normalizers and pre-tokenizers with Hugging Face's: text, pieces and offsets.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "tokenizers/byte_level.h"
#include "tokenizers/normalizers/normalizer.h"
#include "tokenizers/pre_tokenizers/pre_tokenizer.h"

namespace megatron::tokenizers {
namespace {

struct Result {
  std::string normalized;
  std::vector<std::string> pieces;
  std::vector<int64_t> offsets;
};

// Index of the code point that contains each byte, followed by the number of code points.
std::vector<int64_t> code_points(std::string_view text) {
  std::vector<int64_t> points;
  int64_t next = -1;
  for (const char c : text) points.push_back((c & 0xc0) == 0x80 ? next : ++next);
  points.push_back(next + 1);
  return points;
}

Result run(const Normalizer* normalizer, const PreTokenizer* pre_tokenizer,
           const std::string& input, bool with_offsets) {
  Result result;
  std::vector<Range> origins = character_ranges(input, 0);
  origins.resize(origins.size() + 1);
  Text text({.bytes = input, .origins = with_offsets ? origins.data() : nullptr});
  if (normalizer) normalizer->normalize(text);
  result.normalized = text.bytes();
  if (text.bytes().empty()) return result;
  const std::vector<int64_t> points = code_points(input);
  const bool byte_level = pre_tokenizer && pre_tokenizer->byte_level();
  const auto add = [&](TextView piece) {
    EXPECT_FALSE(piece.bytes.empty());
    result.pieces.push_back(byte_level ? letters_of_bytes(piece.bytes) : std::string(piece.bytes));
    if (!with_offsets) return;
    const Range origin = piece.origin(0, piece.bytes.size());
    result.offsets.push_back(points.at(origin.begin));
    result.offsets.push_back(points.at(origin.end));
  };
  const TextView whole = text.view().part(0, text.bytes().size());
  RegexScratch scratch;
  if (pre_tokenizer) {
    pre_tokenizer->split(whole, scratch, add);
  } else {
    add(whole);
  }
  return result;
}

void check_line(const Json& line) {
  const auto normalizer = make_normalizer(line["normalizer"]);
  const auto pre_tokenizer = make_pre_tokenizer(line["pre_tokenizer"]);
  for (const Json& wanted : line["cases"].as_array()) {
    const std::string& text = wanted["text"].as_string();
    SCOPED_TRACE(text);
    const Result result = run(normalizer.get(), pre_tokenizer.get(), text, true);
    EXPECT_EQ(result.normalized, wanted["normalized"].as_string());
    std::vector<int64_t> offsets;
    for (const Json& offset : wanted["offsets"].as_array()) offsets.push_back(offset.as_integer());
    EXPECT_EQ(result.offsets, offsets);
    const Result plain = run(normalizer.get(), pre_tokenizer.get(), text, false);
    EXPECT_EQ(plain.normalized, result.normalized);
    EXPECT_EQ(plain.pieces, result.pieces);
    const Json* pieces = wanted.find("pieces");
    if (!pieces) continue;
    std::vector<std::string> texts;
    for (const Json& piece : pieces->as_array()) texts.push_back(piece.as_string());
    EXPECT_EQ(result.pieces, texts);
  }
}

TEST(TokenizerComponents, EqualHuggingFace) {
  const std::string path = std::string(MEGATRON_GOLDEN) + "/tokenizers/components.jsonl";
  const std::string text = read_file(path);
  size_t lines = 0;
  for (size_t begin = 0; begin < text.size(); ++lines) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const Json line = Json::parse(std::string_view(text).substr(begin, end - begin), path);
    SCOPED_TRACE("line " + std::to_string(lines + 1));
    check_line(line);
    begin = end + 1;
  }
  EXPECT_GT(lines, 150u);
}

}  // namespace
}  // namespace megatron::tokenizers
