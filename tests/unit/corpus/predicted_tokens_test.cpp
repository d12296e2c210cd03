#include "corpus/predicted_tokens.h"

#include <gtest/gtest.h>

namespace megatron::corpus {
namespace {

using PredictedIds = std::vector<int32_t>;
using PredictedCounts = std::vector<double>;

// Two sequences of six tokens; the label of each token is the next one's id.
HostBatch two_sequences() {
  HostBatch batch{.layout = {.sequences = 2, .length = 6}};
  for (int32_t i = 0; i < 12; ++i) {
    batch.tokens.push_back(10 + i);
    batch.labels.push_back(11 + i);
    batch.positions.push_back(i % 6);
    batch.loss_mask.push_back(1);
  }
  batch.sample_ids = {0, 1};
  return batch;
}

TEST(PredictedTokens, AreOfTheSameSequence) {
  const HostPredicted two = predicted_tokens(two_sequences(), 2);
  EXPECT_EQ(two.tokens, (PredictedIds{12, 13, 14, 15, 0, 0, 18, 19, 20, 21, 0, 0}));
  EXPECT_EQ(two.labels, (PredictedIds{13, 14, 15, 16, 0, 0, 19, 20, 21, 22, 0, 0}));
  EXPECT_EQ(two.counts, (PredictedCounts{1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0, 0}));
  EXPECT_EQ(two.factors, (PredictedCounts{1.5, 1.5}));
}

TEST(PredictedTokens, NeverPassTheEndOfADocument) {
  HostBatch batch = two_sequences();
  batch.segment_starts = {0, 0, 0, 3, 3, 5, 0, 1, 2, 3, 4, 5};
  batch.loss_mask[1] = 0;
  const HostPredicted one = predicted_tokens(batch, 1);
  EXPECT_EQ(one.tokens, (PredictedIds{11, 12, 0, 14, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(one.labels, (PredictedIds{12, 13, 0, 15, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(one.counts, (PredictedCounts{0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(one.factors,
            (PredictedCounts{2.5, 0}));  // five labels count, two of which the depth has
}

TEST(PredictedTokens, OfAContextParallelRankAreThoseOfItsTokens) {
  for (int rank = 0; rank < 3; ++rank) {
    HostBatch held = two_sequences();
    held.segment_starts = {0, 0, 0, 0, 4, 4, 0, 0, 0, 0, 0, 0};
    const HostPredicted all = predicted_tokens(held, 1);
    keep_tokens(held, {.sequences = 2, .length = 6, .rank = rank, .ranks = 3});
    const HostPredicted own = predicted_tokens(held, 1);
    EXPECT_EQ(own.factors, all.factors);
    ASSERT_EQ(own.tokens.size(), 4u);
    for (size_t i = 0; i < own.tokens.size(); ++i) {
      const size_t at = i / 2 * 6 + static_cast<size_t>(held.indices()[i]);
      EXPECT_EQ(own.tokens[i], all.tokens[at]);
      EXPECT_EQ(own.labels[i], all.labels[at]);
      EXPECT_EQ(own.counts[i], all.counts[at]);
    }
  }
}

}  // namespace
}  // namespace megatron::corpus
