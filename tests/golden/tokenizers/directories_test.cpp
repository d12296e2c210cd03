// Directories with configuration files, opened as by transformers' AutoTokenizer.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tokenizers/tokenizer.h"
#include "tokenizers/vector_check.h"

namespace megatron::tokenizers {
namespace {

namespace fs = std::filesystem;

TEST(TokenizerDirectories, EqualAutoTokenizer) {
  int64_t folders = 0;
  for (const auto& entry :
       fs::directory_iterator(std::string(MEGATRON_GOLDEN) + "/tokenizer_directories")) {
    ++folders;
    const VectorReport report = check_vectors(
        entry.path().string(), {}, [](std::string_view mismatch) { ADD_FAILURE() << mismatch; });
    EXPECT_GT(report.passed, 5) << entry.path();
    EXPECT_EQ(report.failed, 0) << entry.path();
  }
  EXPECT_GE(folders, 100);
}

// A saved tokenizer opens as the same tokenizer, without the files that are not saved.
TEST(TokenizerDirectories, SavedOnesOpenTheSame) {
  const std::string text =
      "The cat<new> <s>sat</s>  on<|turn|>\n<|endoftext|>Gr\xc3\xb6\xc3\x9f"
      "e";
  const std::string saved = ::testing::TempDir() + "megatron_saved_directory";
  for (const auto& entry :
       fs::directory_iterator(std::string(MEGATRON_GOLDEN) + "/tokenizer_directories")) {
    if (fs::exists(entry.path() / "config.json")) continue;  // a saved tokenizer has none
    const Tokenizer tokenizer = Tokenizer::load(entry.path().string());
    fs::remove_all(saved);
    fs::create_directories(saved);
    tokenizer.save(saved);
    const Tokenizer again = Tokenizer::load(saved);
    EXPECT_EQ(again.encode(text, true), tokenizer.encode(text, true)) << entry.path();
    EXPECT_EQ(again.vocabulary_size(), tokenizer.vocabulary_size()) << entry.path();
    EXPECT_EQ(again.eos(), tokenizer.eos()) << entry.path();
  }
  fs::remove_all(saved);
}

}  // namespace
}  // namespace megatron::tokenizers
