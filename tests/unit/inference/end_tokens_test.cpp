#include "inference/end_tokens.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/files.h"
#include "text.h"
#include "tokenizers/plain_codecs.h"

namespace megatron::inference {
namespace {

using Ids = std::vector<int32_t>;

class EndTokens : public ::testing::Test {
 protected:
  EndTokens() {
    std::string pattern = (std::filesystem::temp_directory_path() / "end-tokens-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~EndTokens() override { std::filesystem::remove_all(folder_); }

  Ids of(const std::string& generation, const std::string& config) const {
    write_file(folder_ + "/generation_config.json", generation);
    write_file(folder_ + "/config.json", config);
    return end_tokens({folder_}, tokenizer_);
  }

  std::string folder_;
  // Ids are bytes, and 0 ends both a document and a sequence.
  tokenizers::Tokenizer tokenizer_{tokenizers::make_byte_codec(256)};
};

TEST_F(EndTokens, TheGenerationConfigGoesFirst) {
  EXPECT_EQ(end_tokens({folder_}, tokenizer_), (Ids{0})) << "no file";
  EXPECT_EQ(of(R"({"eos_token_id": [7, 0, 9, 7]})", R"({"eos_token_id": 5})"), (Ids{7, 0, 9}));
  EXPECT_EQ(of(R"({"eos_token_id": 7})", R"({"eos_token_id": [5]})"), (Ids{7, 0}));
  EXPECT_EQ(of("{}", R"({"eos_token_id": [5, 6]})"), (Ids{5, 6, 0}));
  EXPECT_EQ(of(R"({"eos_token_id": null})", R"({"eos_token_id": 5})"), (Ids{5, 0}));
  EXPECT_EQ(of(R"({"eos_token_id": []})", R"({"eos_token_id": 5})"), (Ids{0}));
}

TEST_F(EndTokens, NoTokenIsLeftOutWithAWarning) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(of(R"({"eos_token_id": [255, 256, -1]})", "{}"), (Ids{255, 0}));
  testing::expect_contains(
      ::testing::internal::GetCapturedStderr(),
      {folder_ + "/generation_config.json: eos_token_id 256", "[0, 256)", "eos_token_id -1"});
}

TEST_F(EndTokens, OtherValuesAreRefused) {
  for (const char* value : {"\"</s>\"", "[1, \"2\"]", "1.5", "true", "{\"id\": 1}", "[[1]]"})
    testing::expect_contains(
        testing::error_of([&] { of("{}", "{\"eos_token_id\": " + std::string(value) + "}"); }),
        {folder_ + "/config.json: eos_token_id is ", "a token id"});
}

}  // namespace
}  // namespace megatron::inference
