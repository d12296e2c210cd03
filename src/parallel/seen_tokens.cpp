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

}  // namespace

std::vector<SeenTokens::Run> SeenTokens::seen(int rank) const {
  std::vector<Run> seen;
  for (const Run& queries : layout_.runs(rank)) {
    const int64_t begin =
        std::max<int64_t>(kernels::lowest_seen(queries.begin, window_, chunk_), 0);
    const int64_t last = kernels::highest_seen(queries.end - 1, !two_sided_, window_);
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
  return (window_ > 0 || chunk_ > 0) && 2 * exchanged() <= (layout_.ranks - 1) * layout_.length;
}

}  // namespace megatron::parallel
