#include "parallel/token_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>

#include "base/error.h"

namespace megatron::parallel {
namespace {

// Returns segment_starts of a sequence with documents of these lengths.
std::vector<int32_t> starts_of(const std::vector<int64_t>& lengths) {
  std::vector<int32_t> starts;
  for (const int64_t length : lengths)
    starts.insert(starts.end(), static_cast<size_t>(length), static_cast<int32_t>(starts.size()));
  return starts;
}

std::vector<int32_t> of_rank(const TokenLayout& layout, const std::vector<int32_t>& by_rank,
                             int rank) {
  const auto begin = by_rank.begin() + rank * layout.rows();
  return {begin, begin + layout.rows()};
}

TEST(TokenLayout, ARankHoldsAChunkFromTheFrontAndOneFromTheBack) {
  const TokenLayout layout{.sequences = 2, .length = 12, .ranks = 3};
  EXPECT_EQ(layout.rows(), 8);
  EXPECT_EQ(tokens_by_rank(layout), (std::vector<int32_t>{0, 1, 10, 11, 0, 1, 10, 11,  //
                                                          2, 3, 8,  9,  2, 3, 8,  9,   //
                                                          4, 5, 6,  7,  4, 5, 6,  7}));
  EXPECT_EQ(tokens_by_rank({.sequences = 2, .length = 3}),
            (std::vector<int32_t>{0, 1, 2, 0, 1, 2}));
}

TEST(TokenLayout, RunsAreTheTokensOfARank) {
  const TokenLayout layout{.sequences = 1, .length = 48, .ranks = 4};
  const std::vector<int32_t> by_rank = tokens_by_rank(layout);
  for (int rank = 0; rank < layout.ranks; ++rank) {
    std::vector<int32_t> tokens;
    for (const TokenLayout::Run& run : layout.runs(rank))
      for (int64_t t = run.begin; t < run.end; ++t) tokens.push_back(static_cast<int32_t>(t));
    EXPECT_EQ(of_rank(layout, by_rank, rank), tokens);
  }
}

// The groups of a two-level exchange therefore have equal work too.
TEST(TokenLayout, GroupsOfNeighboursHoldWhatAsManyRanksWould) {
  const TokenLayout layout{.sequences = 2, .length = 48, .rank = 5, .ranks = 6, .inner = 2};
  const TokenLayout inner = layout.inner_level(), ring = layout.ring_level();
  EXPECT_EQ(inner, (TokenLayout{.sequences = 2, .length = 16, .rank = 1, .ranks = 2}));
  EXPECT_EQ(ring, (TokenLayout{.sequences = 2, .length = 48, .rank = 2, .ranks = 3}));
  EXPECT_EQ(inner.held(), layout.held());
  EXPECT_EQ(inner.length, ring.held());
  EXPECT_EQ(tokens_by_group(layout, tokens_by_rank(layout)), tokens_by_rank(ring));
  const TokenLayout small{.sequences = 1, .length = 12, .ranks = 4, .inner = 2};
  const std::vector<int32_t> by_rank = {5, 6, 11, 1, 2, 3, 0, 9, 10, 4, 7, 8};
  EXPECT_EQ(tokens_by_group(small, by_rank),
            (std::vector<int32_t>{1, 2, 3, 5, 6, 11, 0, 4, 7, 8, 9, 10}));
}

TEST(TokenLayout, EachDocumentIsCutByItself) {
  const TokenLayout layout{.sequences = 1, .length = 12, .ranks = 2};
  EXPECT_EQ(tokens_by_rank(layout, starts_of({4, 8})),
            (std::vector<int32_t>{0, 3, 4, 5, 10, 11, 1, 2, 6, 7, 8, 9}));
  // Remaining tokens go to the ranks with the fewest: rank 0 gets the first document's, and rank 1
  // the second's.
  EXPECT_EQ(tokens_by_rank(layout, starts_of({5, 1, 6})),
            (std::vector<int32_t>{0, 1, 4, 6, 7, 11, 2, 3, 5, 8, 9, 10}));
}

// Number of (query, key) pairs that each rank's tokens see.
std::vector<double> pairs_of(const TokenLayout& layout, const std::vector<int32_t>& starts) {
  const std::vector<int32_t> by_rank = tokens_by_rank(layout, starts);
  std::vector<double> pairs;
  for (int rank = 0; rank < layout.ranks; ++rank) {
    const std::vector<int32_t> tokens = of_rank(layout, by_rank, rank);
    pairs.push_back(0);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto sequence = static_cast<int64_t>(i) / layout.held();
      pairs.back() +=
          1 + tokens[i] - starts[static_cast<size_t>(sequence * layout.length + tokens[i])];
    }
  }
  return pairs;
}

class RandomDocuments : public ::testing::TestWithParam<int> {
 public:
  RandomDocuments() { draw(97); }

  // Draws documents of 1 to `longest` tokens in two sequences.
  void draw(int64_t longest) {
    std::mt19937 random(static_cast<unsigned>(GetParam()));
    documents = 0;
    starts.clear();
    for (int s = 0; s < 2; ++s) {
      std::vector<int64_t> lengths;
      for (int64_t left = layout.length; left > 0; left -= lengths.back())
        lengths.push_back(std::min<int64_t>(left, 1 + static_cast<int64_t>(random()) % longest));
      const std::vector<int32_t> of_sequence = starts_of(lengths);
      documents += std::ssize(lengths);
      starts.insert(starts.end(), of_sequence.begin(), of_sequence.end());
    }
    by_rank = tokens_by_rank(layout, starts);
  }
  // Returns the largest difference between a rank's pairs and their mean, relative to the bound of
  // docs/decisions/034, and this bound relative to the mean.
  std::pair<double, double> unevenness() const {
    const std::vector<double> pairs = pairs_of(layout, starts);
    const double ranks = layout.ranks,
                 mean = std::accumulate(pairs.begin(), pairs.end(), 0.0) / ranks;
    const double bound = (1.5 + 0.5 / ranks) * static_cast<double>(starts.size()) +
                         (ranks + 1) * static_cast<double>(documents);
    double largest = 0;
    for (const double seen : pairs) largest = std::max(largest, std::abs(seen - mean));
    return {largest / bound, bound / mean};
  }

  TokenLayout layout{.sequences = 2, .length = 960, .ranks = GetParam()};
  std::vector<int32_t> starts, by_rank;
  int64_t documents = 0;
};

TEST_P(RandomDocuments, EveryTokenIsOnOneRankInOrder) {
  for (int64_t s = 0; s < layout.sequences; ++s) {
    std::vector<int32_t> held;
    for (int rank = 0; rank < layout.ranks; ++rank) {
      const std::vector<int32_t> tokens = of_rank(layout, by_rank, rank);
      const auto begin = tokens.begin() + s * layout.held();
      EXPECT_TRUE(std::is_sorted(begin, begin + layout.held()));
      held.insert(held.end(), begin, begin + layout.held());
    }
    std::ranges::sort(held);
    std::vector<int32_t> all(static_cast<size_t>(layout.length));
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(held, all);
  }
}

TEST_P(RandomDocuments, AttentionIsNearlyTheSameWorkOnEveryRank) {
  EXPECT_LE(unevenness().first, 1);
  // The bound is small beside the work if documents are long for the number of ranks.
  layout.length = 8192 * layout.ranks;
  draw(512 * layout.ranks);
  const auto [of_bound, of_mean] = unevenness();
  EXPECT_LE(of_bound, 1);
  EXPECT_LE(of_mean, 0.03);
}

INSTANTIATE_TEST_SUITE_P(Ranks, RandomDocuments, ::testing::Values(2, 3, 5, 8, 16));

TEST(TokenLayout, CausalAttentionIsTheSameWorkOnEveryRank) {
  const TokenLayout layout{.sequences = 1, .length = 64, .ranks = 4};
  const std::vector<int32_t> by_rank = tokens_by_rank(layout);
  for (int rank = 0; rank < layout.ranks; ++rank) {
    const std::vector<int32_t> tokens = of_rank(layout, by_rank, rank);
    EXPECT_EQ(std::accumulate(tokens.begin(), tokens.end(), int64_t{0}), 64 * 63 / 2 / 4) << rank;
  }
}

TEST(TokenLayout, LengthsThatCannotBeDividedAreRefused) {
  try {
    TokenLayout{.sequences = 1, .length = 20, .ranks = 4}.check();
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    for (const char* part : {"--context-parallel-size 4", "8 chunks", "20 tokens", "--seq-length"})
      EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  TokenLayout{.sequences = 1, .length = 21}.check();
}

}  // namespace
}  // namespace megatron::parallel
