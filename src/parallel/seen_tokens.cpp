#include "parallel/seen_tokens.h"

#include <algorithm>
#include <span>

#include "base/error.h"
#include "kernels/attention.h"

namespace megatron::parallel {
namespace {

int64_t index_in(std::span<const TokenLayout::Run> runs, int64_t token) {
  int64_t before = 0;
  for (const TokenLayout::Run& run : runs) {
    if (token < run.end) return before + token - run.begin;
    before += run.size();
  }
  MG_ASSERT(false);
}

// Documents of whole sequences, and who holds their tokens.
struct Documents {
  const TokenLayout& layout;
  std::span<const int32_t> indices, starts, ends;

  // Indices of the tokens of a sequence that a rank holds.
  std::span<const int32_t> held(int rank, int64_t sequence) const {
    return indices.subspan(static_cast<size_t>(rank * layout.rows() + sequence * layout.held()),
                           static_cast<size_t>(layout.held()));
  }

  // Keys that a query sees; empty for padding tokens that see nothing.
  TokenLayout::Run seen(int64_t sequence, int32_t query, const AttentionReach& reach) const {
    const auto at = static_cast<size_t>(sequence * layout.length + query);
    int64_t begin = kernels::lowest_seen(query, reach.window, reach.chunk),
            last = kernels::highest_seen(query, !reach.two_sided, reach.window);
    begin = std::max<int64_t>(begin, starts.empty() ? 0 : starts[at]);
    if (reach.two_sided)
      last = std::min<int64_t>(last, ends.empty() ? layout.length - 1 : ends[at]);
    return {begin, last + 1};
  }
};

// Rows of `holder` that the queries of `rank` see.
std::vector<int32_t> rows_seen(const Documents& documents, int rank, int holder,
                               const AttentionReach& reach) {
  const TokenLayout& layout = documents.layout;
  std::vector<int32_t> rows;
  std::vector<int32_t> changes;  // change at each token of the number of queries that see it
  for (int64_t s = 0; s < layout.sequences; ++s) {
    changes.assign(static_cast<size_t>(layout.length) + 1, 0);
    for (const int32_t query : documents.held(rank, s)) {
      const TokenLayout::Run seen = documents.seen(s, query, reach);
      if (seen.size() <= 0) continue;
      ++changes[static_cast<size_t>(seen.begin)];
      --changes[static_cast<size_t>(seen.end)];
    }
    int64_t token = 0;
    int32_t queries = 0;
    int64_t row = s * layout.held();
    for (const int32_t held : documents.held(holder, s)) {
      for (; token <= held; ++token) queries += changes[static_cast<size_t>(token)];
      if (queries > 0) rows.push_back(static_cast<int32_t>(row));
      ++row;
    }
  }
  return rows;
}

}  // namespace

SeenRows seen_rows(const TokenLayout& layout, std::span<const int32_t> indices,
                   std::span<const int32_t> segment_starts, std::span<const int32_t> segment_ends,
                   const AttentionReach& reach) {
  const Documents documents{layout, indices, segment_starts, segment_ends};
  SeenRows rows{.sent = {{}}, .received = {{}}};
  for (int step = 1; step < layout.ranks; ++step) {
    rows.sent.push_back(rows_seen(documents, layout.rank_at(step), layout.rank, reach));
    rows.received.push_back(rows_seen(documents, layout.rank, layout.rank_at(-step), reach));
  }
  return rows;
}

std::vector<SeenTokens::Run> SeenTokens::seen(int rank) const {
  std::vector<Run> seen;
  for (const Run& queries : layout_.runs(rank)) {
    const int64_t begin =
        std::max<int64_t>(kernels::lowest_seen(queries.begin, reach_.window, reach_.chunk), 0);
    const int64_t last = kernels::highest_seen(queries.end - 1, !reach_.two_sided, reach_.window);
    const int64_t end = std::min(last + 1, layout_.length);
    if (seen.empty() || begin > seen.back().end) seen.push_back({begin, end});
    else seen.back().end = std::max(seen.back().end, end);
  }
  return seen;
}

std::vector<SeenTokens::Run> SeenTokens::seen(int rank, int holder) const {
  std::vector<Run> seen;
  for (const Run& keys : this->seen(rank))
    for (const Run& held : layout_.runs(holder)) {
      const Run both{std::max(keys.begin, held.begin), std::min(keys.end, held.end)};
      if (both.size() > 0) seen.push_back(both);
    }
  return seen;
}

int64_t SeenTokens::count(int rank, int holder) const {
  int64_t count = 0;
  for (const Run& run : seen(rank, holder)) count += run.size();
  return count;
}

int64_t SeenTokens::index_held(int rank, int64_t token) const {
  return index_in(layout_.runs(rank), token);
}

int64_t SeenTokens::index_seen(int rank, int64_t token) const {
  return index_in(seen(rank), token);
}

int64_t SeenTokens::exchanged() const {
  int64_t tokens = -layout_.length;  // those that the ranks hold themselves
  for (int rank = 0; rank < layout_.ranks; ++rank)
    for (const Run& run : seen(rank)) tokens += run.size();
  return tokens;
}

bool SeenTokens::few() const {
  return reach_.limited() && 2 * exchanged() <= (layout_.ranks - 1) * layout_.length;
}

}  // namespace megatron::parallel
