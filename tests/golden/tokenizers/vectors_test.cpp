// The ids, texts and streams of Hugging Face's tokenizers, for each tokenizer.json in
// vectors/tokenizers.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "tokenizers/tokenizer.h"

namespace megatron::tokenizers {
namespace {

std::vector<Json> read_lines(const std::string& path) {
  const std::string text = read_file(path);
  std::vector<Json> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin)
      lines.push_back(Json::parse(std::string_view(text).substr(begin, end - begin), path));
    begin = end + 1;
  }
  return lines;
}

std::vector<int32_t> read_ids(const Json& json) {
  std::vector<int32_t> ids;
  for (const Json& id : json.as_array()) ids.push_back(static_cast<int32_t>(id.as_integer()));
  return ids;
}

const Json& either(const Json& object, std::string_view key, const Json& otherwise) {
  const Json* found = object.find(key);
  return found ? *found : otherwise;
}

class TokenizerVectors : public testing::TestWithParam<const char*> {
 protected:
  std::string folder_ = std::string(MEGATRON_GOLDEN) + "/tokenizers/" + GetParam();
  Tokenizer tokenizer_ = Tokenizer::load(folder_);
};

TEST_P(TokenizerVectors, EncodeAndDecode) {
  const std::vector<Json> lines = read_lines(folder_ + "/vectors.jsonl");
  ASSERT_GT(lines.size(), 200u);
  for (const Json& line : lines) {
    const std::string& text = line["text"].as_string();
    const std::vector<int32_t> ids = read_ids(line["ids"]);
    const std::vector<int32_t> special = read_ids(either(line, "ids_special", line["ids"]));
    EXPECT_EQ(tokenizer_.encode(text), ids) << line["tag"].as_string() << ": " << text;
    EXPECT_EQ(tokenizer_.encode(text, true), special) << text;
    EXPECT_EQ(tokenizer_.decode(special), line["decoded"].as_string());
    EXPECT_EQ(tokenizer_.decode(special, true),
              either(line, "decoded_skip_special", line["decoded"]).as_string());
  }
}

TEST_P(TokenizerVectors, DecodeAnyIds) {
  for (const Json& line : read_lines(folder_ + "/decode.jsonl")) {
    const std::vector<int32_t> ids = read_ids(line["ids"]);
    EXPECT_EQ(tokenizer_.decode(ids), line["decoded"].as_string());
    EXPECT_EQ(tokenizer_.decode(ids, true),
              either(line, "decoded_skip_special", line["decoded"]).as_string());
  }
}

TEST_P(TokenizerVectors, Stream) {
  for (const Json& line : read_lines(folder_ + "/stream.jsonl")) {
    DecodeStream stream(tokenizer_);
    std::vector<std::string> pieces, wanted;
    for (const int32_t id : read_ids(line["ids"])) pieces.push_back(stream.push(id));
    pieces.push_back(stream.finish());
    for (const Json& piece : line["pieces"].as_array()) wanted.push_back(piece.as_string());
    EXPECT_EQ(pieces, wanted);
  }
}

TEST_P(TokenizerVectors, WritesWhatItRead) {
  const Json written = Json::parse(tokenizer_.to_json()),
             file = Json::read(folder_ + "/tokenizer.json");
  for (const auto& [key, value] : file.as_object()) {
    if (key == "model") continue;
    EXPECT_EQ(written[key], value) << key;
  }
  EXPECT_EQ(written["model"]["vocab"], file["model"]["vocab"]);
  const Json::Array& merges = file["model"]["merges"].as_array();
  ASSERT_EQ(written["model"]["merges"].as_array().size(), merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const Json::Array& pair = written["model"]["merges"].as_array()[i].as_array();
    const std::string joined = pair[0].as_string() + " " + pair[1].as_string();
    EXPECT_EQ(merges[i].is_string() ? Json(joined) : Json(pair), merges[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(HuggingFace, TokenizerVectors,
                         testing::Values("real/gpt2", "trained/gpt2", "trained/llama3",
                                         "trained/qwen2", "trained/roberta", "trained/deepseek_v3",
                                         "trained/o200k"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name)
                             if (c == '/') c = '_';
                           return name;
                         });

}  // namespace
}  // namespace megatron::tokenizers
