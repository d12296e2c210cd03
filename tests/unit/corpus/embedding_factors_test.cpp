#include "corpus/embedding_factors.h"

#include <gtest/gtest.h>

#include "corpus/masked_corpus.h"

namespace megatron::corpus {
namespace {

constexpr int32_t kMask = 9;

TEST(EmbeddingFactors, CountMasksOfEachDocument) {
  // Two documents of one row, the first with a mask among four tokens, the second with none.
  HostBatch batch{.layout = {.sequences = 1, .length = 6}, .tokens = {1, kMask, 2, 3, 4, 5}};
  batch.segment_starts = {0, 0, 0, 0, 4, 4};
  const std::vector<double> expected = {0.88 / 0.75, 0, 0.88 / 0.75, 0.88 / 0.75, 0.88, 0.88};
  const std::vector<double> factors = embedding_factors(batch, kMask);
  ASSERT_EQ(factors.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(factors[i], expected[i], 1e-15) << i;
}

TEST(EmbeddingFactors, LeaveOutHiddenTokensAndRowsAreApart) {
  HostBatch batch{.layout = {.sequences = 2, .length = 4},
                  .tokens = {1, kMask, 2, 0, kMask, kMask, kMask, kMask}};
  batch.segment_starts.assign(8, 0);
  batch.segment_ends = {2, 2, 2, 2, 3, 3, 3, 3};  // the last token of the first row is hidden
  const std::vector<double> factors = embedding_factors(batch, kMask);
  EXPECT_NEAR(factors[0], 0.88 / (1 - 1.0 / 3), 1e-15);
  for (size_t i = 4; i < 8; ++i) EXPECT_EQ(factors[i], 0) << i;  // all masked
}

// A context-parallel rank has the factors of the tokens that it holds.
TEST(EmbeddingFactors, AreThoseOfWholeSequencesOnEachRank) {
  HostBatch batch{.layout = {.sequences = 1, .length = 8}, .tokens = {1, kMask, 2, 3, 4, 5, 6, 7}};
  batch.positions.assign(8, 0);
  batch.labels.assign(8, 0);
  batch.loss_mask.assign(8, 1);
  const std::vector<double> whole = embedding_factors(batch, kMask);
  for (int rank = 0; rank < 2; ++rank) {
    HostBatch part = batch;
    keep_tokens(part, {.sequences = 1, .length = 8, .rank = rank, .ranks = 2});
    const std::vector<double> own = embedding_factors(part, kMask);
    ASSERT_EQ(own.size(), 4u);
    for (size_t i = 0; i < own.size(); ++i)
      EXPECT_EQ(own[i], whole[static_cast<size_t>(part.indices()[i])]);
  }
}

class TwoExamples final : public data::BertExamples {
 public:
  int64_t size() const override { return 2; }
  void read(int64_t k, data::BertExample& example) const override {
    constexpr int64_t kNone = data::TokenMasker::kIgnored;
    example = {.tokens = {1, 7, kMask, 2, 8, 2},
               .token_types = {0, 0, 0, 0, 1, 1},
               .labels = {kNone, kNone, 6, kNone, kNone, kNone},
               .is_random = k == 1};
  }
};

TEST(MaskedRows, PadWithTokensThatSeeOnlyThemselves) {
  const MaskedRows rows(std::make_shared<const TwoExamples>(), 8, 3, true);
  data::Sample sample;
  rows.read(1, sample);
  EXPECT_EQ(sample.tokens, (std::vector<int64_t>{1, 7, kMask, 2, 8, 2, 3, 3}));
  EXPECT_EQ(sample.segment_begin, (std::vector<int32_t>{0, 0, 0, 0, 0, 0, 6, 7}));
  EXPECT_EQ(sample.loss_mask, (std::vector<float>{0, 0, 1, 0, 0, 0, 0, 0}));
  EXPECT_EQ(sample.labels[2], 6);
  EXPECT_EQ(sample.pair_labels, (std::vector<int32_t>{1, -1, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(sample.sources.back(), -1);
  EXPECT_EQ(sample.token_types, (std::vector<int64_t>{0, 0, 0, 0, 1, 1, 0, 0}));
  rows.read_filler(sample);
  EXPECT_EQ(sample.loss_mask, std::vector<float>(8, 0));
  EXPECT_EQ(sample.pair_labels, std::vector<int32_t>(8, -1));
  const MaskedRows texts(std::make_shared<const TwoExamples>(), 8, 3, false);
  texts.read(0, sample);
  EXPECT_TRUE(sample.pair_labels.empty());
}

}  // namespace
}  // namespace megatron::corpus
