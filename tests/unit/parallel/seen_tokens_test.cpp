#include "parallel/seen_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/attention.h"

namespace megatron::parallel {
namespace {

struct Case {
  int ranks;
  int64_t length, window, chunk;
  bool two_sided = false;
};

class SeenTokensOf : public ::testing::TestWithParam<Case> {};

// True if a query of the rank sees the token.
bool sees(const TokenLayout& layout, const Case& c, int rank, int64_t token) {
  for (const TokenLayout::Run& run : layout.runs(rank))
    for (int64_t query = run.begin; query < run.end; ++query)
      if ((c.two_sided ? c.window == 0 || token < query + c.window : token <= query) &&
          token >= kernels::lowest_seen(query, c.window, c.chunk))
        return true;
  return false;
}

TEST_P(SeenTokensOf, ThoseThatAnyQuerySees) {
  const Case& c = GetParam();
  const TokenLayout layout{.sequences = 1, .length = c.length, .ranks = c.ranks};
  const SeenTokens seen(layout, {c.window, c.chunk, c.two_sided});
  int64_t exchanged = 0;
  for (int rank = 0; rank < c.ranks; ++rank) {
    std::vector<int64_t> tokens;
    for (int64_t t = 0; t < c.length; ++t)
      if (sees(layout, c, rank, t)) tokens.push_back(t);
    std::vector<int64_t> listed;
    for (const auto& run : seen.seen(rank))
      for (int64_t t = run.begin; t < run.end; ++t) {
        EXPECT_EQ(seen.index_seen(rank, t), std::ssize(listed));
        listed.push_back(t);
      }
    EXPECT_EQ(listed, tokens) << "rank " << rank;
    int64_t of_all = 0;
    for (int holder = 0; holder < c.ranks; ++holder) {
      int64_t index = 0, count = 0;
      for (const auto& held : layout.runs(holder))
        for (int64_t t = held.begin; t < held.end; ++t, ++index) {
          EXPECT_EQ(seen.index_held(holder, t), index);
          count += sees(layout, c, rank, t);
        }
      EXPECT_EQ(seen.count(rank, holder), count);
      int64_t in_runs = 0;
      for (const auto& run : seen.seen(rank, holder)) in_runs += run.size();
      EXPECT_EQ(in_runs, count);
      of_all += count;
      if (holder == rank) EXPECT_EQ(count, layout.held());
      else exchanged += count;
    }
    EXPECT_EQ(of_all, std::ssize(tokens));
  }
  EXPECT_EQ(seen.exchanged(), exchanged);
  EXPECT_EQ(seen.few(), (c.window > 0 || c.chunk > 0) && exchanged <= (c.ranks - 1) * c.length / 2);
}

INSTANTIATE_TEST_SUITE_P(Shapes, SeenTokensOf,
                         ::testing::Values(Case{2, 16, 0, 0}, Case{2, 16, 1, 0}, Case{2, 16, 5, 0},
                                           Case{2, 16, 15, 0}, Case{4, 48, 6, 0}, Case{4, 48, 7, 0},
                                           Case{4, 48, 20, 0}, Case{4, 48, 0, 6}, Case{4, 48, 0, 8},
                                           Case{4, 48, 5, 16}, Case{8, 32, 3, 0},
                                           Case{2, 16, 0, 0, true}, Case{2, 16, 1, 0, true},
                                           Case{2, 16, 5, 0, true}, Case{4, 48, 7, 0, true},
                                           Case{4, 48, 20, 0, true}, Case{8, 32, 3, 0, true}));

TEST(SeenTokens, NoneOfOthersInChunksOfAttentionThatEndWithTheirs) {
  const TokenLayout layout{.sequences = 1, .length = 48, .ranks = 4};
  EXPECT_EQ(SeenTokens(layout, {.chunk = 6}).exchanged(), 0);
  EXPECT_EQ(SeenTokens(layout, {.window = 1}).exchanged(), 0);
  EXPECT_EQ(SeenTokens(layout, {.window = 2}).exchanged(), 6);
}

// Two rows of three documents each.
struct Packed {
  TokenLayout layout;
  std::vector<int32_t> starts, ends;

  explicit Packed(int ranks) : layout{.sequences = 2, .length = 48, .ranks = ranks} {
    for (const std::array<int32_t, 4>& bounds : {std::array{0, 11, 29, 48}, {0, 30, 31, 48}})
      for (size_t document = 0; document < 3; ++document)
        for (int32_t t = bounds[document]; t < bounds[document + 1]; ++t) {
          starts.push_back(bounds[document]);
          ends.push_back(bounds[document + 1] - 1);
        }
  }
  bool sees(int64_t sequence, int32_t query, int32_t key, const AttentionReach& reach) const {
    const auto at = static_cast<size_t>(sequence * layout.length + query);
    return starts[at] <= key && key <= ends[at] && (reach.two_sided || key <= query) &&
           kernels::lowest_seen(query, reach.window, reach.chunk) <= key &&
           key <= kernels::highest_seen(query, !reach.two_sided, reach.window);
  }
};

class SeenRowsOf : public ::testing::TestWithParam<AttentionReach> {};

TEST_P(SeenRowsOf, ThoseOfOtherRanksThatAnyQuerySees) {
  for (const int ranks : {2, 4}) {
    Packed packed(ranks);
    const auto indices = tokens_by_rank(packed.layout, packed.starts);
    const int64_t held = packed.layout.held(), rows = packed.layout.rows();
    const auto seen_by = [&](int rank, int holder) {
      std::vector<int32_t> seen;
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t sequence = row / held;
        const auto queries = indices.begin() + rank * rows + sequence * held;
        if (std::any_of(queries, queries + held, [&](int32_t query) {
              return packed.sees(sequence, query, indices[static_cast<size_t>(holder * rows + row)],
                                 GetParam());
            }))
          seen.push_back(static_cast<int32_t>(row));
      }
      return seen;
    };
    for (int rank = 0; rank < ranks; ++rank) {
      packed.layout.rank = rank;
      const SeenRows listed =
          seen_rows(packed.layout, indices, packed.starts, packed.ends, GetParam());
      ASSERT_EQ(std::ssize(listed.sent), ranks);
      for (int step = 1; step < ranks; ++step) {
        const int next = (rank + step) % ranks, previous = (rank + ranks - step) % ranks;
        EXPECT_EQ(listed.sent[static_cast<size_t>(step)], seen_by(next, rank));
        EXPECT_EQ(listed.received[static_cast<size_t>(step)], seen_by(rank, previous));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Reaches, SeenRowsOf,
                         ::testing::Values(AttentionReach{.window = 1}, AttentionReach{.window = 4},
                                           AttentionReach{.window = 20}, AttentionReach{.chunk = 8},
                                           AttentionReach{.window = 5, .chunk = 16},
                                           AttentionReach{.window = 4, .two_sided = true}));

}  // namespace
}  // namespace megatron::parallel
