// Pairs of texts as rows of an encoder's and a decoder's tokens.
#include "corpus/chat/text_pair_dataset.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "corpus/corpus.h"
#include "tokenizers/tokenizer.h"

namespace megatron::corpus {
namespace {

using Indices = std::vector<int32_t>;
using Ids = std::vector<int64_t>;

class TextPairs : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("text_pairs_" + std::to_string(::getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / "vocab.txt") << "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ntime\nyear\n";
    tokenizer_ =
        std::make_unique<tokenizers::Tokenizer>(tokenizers::Tokenizer::load(folder_ / "vocab.txt"));
    reading_ = {.encoder_length = 12,
                .decoder_length = 8,
                .input_ends = tokenizers::text_ends(*tokenizer_),
                .around = data::decoder_tokens(data::sample_tokens(*tokenizer_))};
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  TextPairTokens tokens(const std::string& input, const std::string& target) const {
    return text_pair_tokens({input, target}, *tokenizer_, reading_, "here");
  }
  // Pairs of n tokens with the tokenizer's around them, and of m with the end.
  std::shared_ptr<const TextPairStore> store(const std::vector<std::pair<int, int>>& sizes) const {
    TextPairStore store{.reading = reading_};
    int32_t next = 100;
    for (const auto& [n, m] : sizes) {
      for (int i = 0; i < n; ++i) store.inputs.push_back(next++);
      for (int i = 0; i < m; ++i) store.targets.push_back(next++);
      store.input_ends.push_back(std::ssize(store.inputs));
      store.target_ends.push_back(std::ssize(store.targets));
      store.sources.add("a");
    }
    return std::make_shared<const TextPairStore>(std::move(store));
  }

  std::filesystem::path folder_;
  std::unique_ptr<tokenizers::Tokenizer> tokenizer_;
  TextPairReading reading_;
};

TEST_F(TextPairs, AreFoundUnderTheirKeys) {
  const auto pair = [&](const std::string& json) {
    const InputAndTarget found = text_pair_of(Json::parse(json), "here", reading_);
    return found.input + "|" + found.target;
  };
  EXPECT_EQ(pair(R"({"input": "a", "target": "b"})"), "a|b");
  EXPECT_EQ(pair(R"({"inputs": "a", "targets": "b"})"), "a|b");
  EXPECT_EQ(pair(R"({"prompt": "a", "completion": "b", "target": "c"})"), "a|b");
  EXPECT_THROW(pair(R"({"input": "a", "completion": "b"})"), Error);
  EXPECT_THROW(pair(R"({"input": ["a"], "target": "b"})"), Error);
  EXPECT_THROW(pair(R"(["a", "b"])"), Error);
  reading_.input_key = "q";
  EXPECT_EQ(pair(R"({"q": "x", "input": "a", "targets": "b"})"), "x|b");
  reading_.target_key = "a";
  EXPECT_EQ(pair(R"({"q": "x", "a": "y"})"), "x|y");
  EXPECT_THROW(pair(R"({"input": "a", "target": "b"})"), Error);
}

TEST_F(TextPairs, InputsAreCutBetweenTheTokensAroundThemAndTargetsNever) {
  const auto cls = static_cast<int32_t>(reading_.around.begin),
             sep = static_cast<int32_t>(reading_.around.end);
  const TextPairTokens brief = tokens("time", "the time");
  EXPECT_FALSE(brief.cut);
  EXPECT_EQ(brief.input.front(), cls);
  EXPECT_EQ(brief.input.back(), sep);
  EXPECT_EQ(brief.target.back(), sep);
  EXPECT_NE(brief.target.front(), cls);
  std::string text;
  for (int i = 0; i < 20; ++i) text += "time ";
  const TextPairTokens cut = tokens(text, "the");
  EXPECT_TRUE(cut.cut);
  ASSERT_EQ(cut.input.size(), 12u);
  EXPECT_EQ(cut.input.front(), cls);
  EXPECT_EQ(cut.input.back(), sep);
  EXPECT_THROW(tokens("the", text), Error);
}

TEST_F(TextPairs, ARowHasSeveralPairsThatDoNotSeeEachOther) {
  const auto pairs = store({{5, 3}, {4, 2}});
  TextPairDataset set(pairs, {0, 1}, Packing::bfd, 12, 0, std::nullopt, std::nullopt);
  ASSERT_EQ(set.rows().rows(), 1);
  data::Sample sample;
  set.read(0, sample);
  const int64_t begin = reading_.around.begin;
  EXPECT_EQ(sample.encoder.tokens, (Ids{100, 101, 102, 103, 104, 108, 109, 110, 111, 0, 0, 0}));
  EXPECT_EQ(sample.encoder.position_ids, (Ids{0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 0, 0}));
  EXPECT_EQ(sample.encoder.segment_begin, (Indices{0, 0, 0, 0, 0, 5, 5, 5, 5, 9, 10, 11}));
  EXPECT_EQ(sample.tokens, (Ids{begin, 105, 106, begin, 112, 0, 0, 0}));
  EXPECT_EQ(sample.labels, (Ids{105, 106, 107, 112, 113, 0, 0, 0}));
  EXPECT_EQ(sample.loss_mask, (std::vector<float>{1, 1, 1, 1, 1, 0, 0, 0}));
  EXPECT_EQ(sample.segment_begin, (Indices{0, 0, 0, 3, 3, 5, 6, 7}));
  EXPECT_EQ(sample.encoder_begin, (Indices{0, 0, 0, 5, 5, 0, 0, 0}));
  EXPECT_EQ(sample.encoder_end, (Indices{4, 4, 4, 8, 8, 0, 0, 0}));
  EXPECT_EQ(set.length_text(), "12 + 8 tokens");
  EXPECT_DOUBLE_EQ(set.filled(), 14.0 / 20);
}

TEST_F(TextPairs, PackingFillsBothTextsAndLosesNone) {
  Ids inputs, targets;
  for (int64_t i = 0; i < 2500; ++i) {
    inputs.push_back(1 + i * 7 % 12);
    targets.push_back(1 + i * 5 % 8);
  }
  const std::vector<PackedRow> rows = pack_text_pairs(inputs, targets, 12, 8);
  std::vector<int> seen(inputs.size());
  int64_t in = 0, out = 0;
  for (const PackedRow& row : rows) {
    int64_t encoder = 0, decoder = 0;
    for (const PackedPart& part : row) {
      const auto at = static_cast<size_t>(part.document);
      ++seen[at];
      encoder += inputs[at];
      decoder += targets[at];
      EXPECT_EQ(part.length, targets[at]);
    }
    EXPECT_LE(encoder, 12);
    EXPECT_LE(decoder, 8);
    in += encoder;
    out += decoder;
  }
  EXPECT_EQ(seen, std::vector<int>(inputs.size(), 1));
  const auto least = std::max(in / 12, out / 8);
  EXPECT_LT(static_cast<int64_t>(rows.size()), 13 * least / 10);
}

TEST_F(TextPairs, FilesAreReadInTheirOrder) {
  std::ofstream(folder_ / "a.jsonl") << R"({"input": "time", "target": "year"})"
                                     << "\n"
                                     << R"({"input": "the the", "target": "time"})" << "\n";
  ThreadPool pool(2);
  const TextPairStore read =
      read_text_pairs({folder_ / "a.jsonl"}, *tokenizer_, reading_, pool, "reading");
  ASSERT_EQ(read.size(), 2);
  const TextPairTokens second = tokens("the the", "time");
  EXPECT_TRUE(std::ranges::equal(read.input(1), second.input));
  EXPECT_TRUE(std::ranges::equal(read.target(1), second.target));
}

}  // namespace
}  // namespace megatron::corpus
