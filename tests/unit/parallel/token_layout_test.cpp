#include "parallel/token_layout.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "base/error.h"

namespace megatron::parallel {
namespace {

TEST(TokenLayout, ARankHoldsAChunkFromTheFrontAndOneFromTheBack) {
  const TokenLayout whole{.sequences = 2, .length = 12};
  EXPECT_EQ(whole.runs(), (std::vector<TokenRun>{{0, 12}}));
  EXPECT_EQ(whole.rows(), 24);
  const TokenLayout layout{.sequences = 2, .length = 12, .rank = 1, .ranks = 3};
  EXPECT_EQ(layout.runs(), (std::vector<TokenRun>{{2, 2}, {8, 2}}));
  EXPECT_EQ(layout.rows(), 8);
  EXPECT_EQ(layout.of_rank(2).runs(), (std::vector<TokenRun>{{4, 2}, {6, 2}}));
}

TEST(TokenLayout, EveryTokenIsOnOneRank) {
  TokenLayout layout{.sequences = 3, .length = 40, .ranks = 5};
  std::vector<int> all(120);
  std::iota(all.begin(), all.end(), 0);
  std::vector<int> held;
  for (int rank = 0; rank < layout.ranks; ++rank) {
    std::vector<int> values = all;
    keep_held(layout.of_rank(rank), values);
    EXPECT_EQ(std::ssize(values), layout.rows());
    EXPECT_TRUE(std::ranges::is_sorted(values));
    held.insert(held.end(), values.begin(), values.end());
  }
  std::ranges::sort(held);
  EXPECT_EQ(held, all);
}

TEST(TokenLayout, CausalAttentionIsTheSameWorkOnEveryRank) {
  const TokenLayout layout{.sequences = 1, .length = 64, .ranks = 4};
  const auto seen_keys = [&](int rank) {
    int64_t keys = 0;
    for (const TokenRun& run : layout.of_rank(rank).runs())
      for (int64_t i = 0; i < run.size; ++i) keys += run.begin + i + 1;
    return keys;
  };
  for (int rank = 1; rank < layout.ranks; ++rank) EXPECT_EQ(seen_keys(rank), seen_keys(0)) << rank;
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
