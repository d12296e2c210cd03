// How sentences are collected into samples; golden/selftest compares whole mappings with
// Megatron-LM's.
#include "data/sentence_mapping.h"

#include <algorithm>

#include "support.h"

namespace megatron::data {
namespace {

// Sentences of three documents: one that is divided, one sentence alone, and a long one.
constexpr int64_t kBounds[] = {0, 5, 6, 8};
constexpr int32_t kLengths[] = {3, 4, 5, 6, 2, 9, 600, 1};

SentenceDocuments documents(FunctionRef<std::pair<int64_t, int64_t>(int64_t)> sentences) {
  return {.documents = 3,
          .sentences = sentences,
          .lengths = Lengths(std::as_bytes(std::span(kLengths)))};
}

std::pair<int64_t, int64_t> sentences_of(int64_t document) {
  return {kBounds[document], kBounds[document + 1]};
}

std::vector<std::vector<int64_t>> sorted_rows(const IntegerArray& rows) {
  const int64_t width = rows.shape()[1];
  std::vector<std::vector<int64_t>> sorted(static_cast<size_t>(rows.shape()[0]));
  for (int64_t i = 0; i < rows.size(); ++i)
    sorted[static_cast<size_t>(i / width)].push_back(rows[i]);
  std::ranges::sort(sorted);
  return sorted;
}

using Rows = std::vector<std::vector<int64_t>>;

// 3 + 4 tokens are enough; then 5 + 6, but the last two sentences stay together.
TEST(SentenceMappingTest, SamplesEndWithASentence) {
  const auto source = [](int64_t d) { return sentences_of(d); };
  const SentenceMapping pairs =
      map_sentences(documents(source), {.samples = 1, .tokens = 7, .min_sentences = 2});
  EXPECT_EQ(sorted_rows(pairs.rows), (Rows{{0, 2, 7}, {2, 5, 7}}));
  EXPECT_EQ(pairs.epochs, 1);
  EXPECT_EQ(pairs.too_few_sentences, 1);
  EXPECT_EQ(pairs.too_long_sentences, 1);
  const SentenceMapping spans = map_sentences(documents(source), {.samples = 4, .tokens = 3});
  EXPECT_EQ(sorted_rows(spans.rows), (Rows{{0, 1, 3}, {1, 2, 3}, {2, 3, 3}, {3, 5, 3}, {5, 6, 3}}));
}

// The number of samples is tested before an epoch; targets go on from epoch to epoch.
TEST(SentenceMappingTest, EpochsAreWhole) {
  const auto source = [](int64_t d) { return sentences_of(d); };
  const MappingRequest request = {
      .samples = 6, .tokens = 40, .short_sequence_probability = 1, .min_sentences = 1};
  const SentenceMapping mapping = map_sentences(documents(source), request);
  EXPECT_GE(mapping.rows.shape()[0], 6);
  EXPECT_GT(mapping.epochs, 1);
  std::vector<int64_t> targets;
  for (const auto& row : sorted_rows(mapping.rows)) {
    EXPECT_GE(row[2], 2);
    EXPECT_LE(row[2], 40);
    targets.push_back(row[2]);
  }
  EXPECT_NE(std::ranges::min(targets), std::ranges::max(targets));
  EXPECT_EQ(map_sentences(documents(source), {.samples = 0, .tokens = 40}).epochs, 0);
}

TEST(SentenceMappingTest, EndsIfNoDocumentCanBeUsed) {
  const auto alone = [](int64_t) { return std::pair<int64_t, int64_t>(5, 6); };
  const SentenceMapping mapping =
      map_sentences(documents(alone), {.samples = 10, .tokens = 7, .min_sentences = 2});
  EXPECT_EQ(mapping.rows.size(), 0);
  EXPECT_EQ(mapping.too_few_sentences, 3);
}

TEST(SentenceMappingTest, BlocksLeaveRoomForTheTitle) {
  const auto source = [](int64_t d) { return sentences_of(d); };
  const std::vector<int32_t> titles = {4, 0, 0};
  BlockRequest request = {.samples = 1, .tokens = 11, .title_lengths = titles};
  EXPECT_EQ(sorted_rows(map_blocks(documents(source), request)),
            (Rows{{0, 2, 0, 0}, {2, 5, 0, 1}}));
  request.one_sentence_blocks = true;
  EXPECT_EQ(sorted_rows(map_blocks(documents(source), request)),
            (Rows{{0, 2, 0, 0}, {2, 4, 0, 1}, {4, 5, 0, 2}, {5, 6, 1, 3}}));
}

}  // namespace
}  // namespace megatron::data
