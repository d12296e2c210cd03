// Compares every folder of vectors/tokenizers with the tokenizers that made its vectors.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "tokenizers/tokenizer.h"
#include "tokenizers/vector_check.h"

namespace megatron::tokenizers {
namespace {

namespace fs = std::filesystem;

const std::string kVectors = std::string(MEGATRON_GOLDEN) + "/tokenizers/";

// Folders that contain a file with this name, as paths relative to kVectors.
std::vector<std::string> folders_with(const char* name) {
  std::vector<std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(kVectors)) {
    if (entry.path().filename() == name)
      found.push_back(fs::relative(entry.path().parent_path(), kVectors).string());
  }
  std::ranges::sort(found);
  return found;
}

std::string test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::ranges::replace(name, '/', '_');
  return name;
}

class TokenizerVectors : public ::testing::TestWithParam<std::string> {};
class TokenizerJson : public ::testing::TestWithParam<std::string> {};

TEST_P(TokenizerVectors, EveryLine) {
  const VectorReport report = check_vectors(
      kVectors + GetParam(), {}, [](std::string_view mismatch) { ADD_FAILURE() << mismatch; });
  EXPECT_GT(report.passed, 200);
  EXPECT_EQ(report.failed, 0);
}

TEST_P(TokenizerJson, WritesWhatItRead) {
  const std::string file = kVectors + GetParam() + "/tokenizer.json";
  const Json wanted = Json::read(file);
  const Json written = Json::parse(Tokenizer::load(file).codec().files().at(0).content);
  for (const auto& [key, value] : wanted.as_object()) {
    if (key == "model") continue;
    EXPECT_EQ(written[key], value) << key;
  }
  for (const auto& [key, value] : wanted["model"].as_object()) {
    if (key == "merges") continue;
    EXPECT_EQ(written["model"][key], value) << key;
  }
  const Json* merges = wanted["model"].find("merges");
  if (merges == nullptr) return;
  const Json::Array& written_merges = written["model"]["merges"].as_array();
  ASSERT_EQ(written_merges.size(), merges->as_array().size());
  for (size_t i = 0; i < written_merges.size(); ++i) {
    const Json::Array& pair = written_merges[i].as_array();
    const std::string joined = pair[0].as_string() + " " + pair[1].as_string();
    const Json& one = merges->as_array()[i];
    EXPECT_EQ(one.is_string() ? Json(joined) : Json(pair), one);
  }
}

// The stream is so long that it discards its beginning.
TEST_P(TokenizerVectors, LongStream) {
  const Tokenizer tokenizer = Tokenizer::load(kVectors + GetParam());
  std::string text;
  for (int i = 0; i < 200; ++i)
    text += fmt::format("line {} caf\xc3\xa9, \xe4\xb8\xad\xe6\x96\x87! don't stop ", i);
  const std::vector<int32_t> ids = tokenizer.encode(text);
  DecodeStream stream(tokenizer);
  std::string all;
  for (const int32_t id : ids) all += stream.push(id);
  EXPECT_EQ(all + stream.finish(), tokenizer.decode(ids, true));
}

INSTANTIATE_TEST_SUITE_P(Folders, TokenizerVectors,
                         ::testing::ValuesIn(folders_with("vectors.jsonl")), test_name);
INSTANTIATE_TEST_SUITE_P(Folders, TokenizerJson,
                         ::testing::ValuesIn(folders_with("tokenizer.json")), test_name);

}  // namespace
}  // namespace megatron::tokenizers
