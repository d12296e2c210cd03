#include "checkpoint/writers.h"

#include <algorithm>
#include <set>

#include "base/divide.h"
#include "checkpoint/exchange.h"

namespace megatron::checkpoint {
namespace {

using Load = std::pair<int64_t, int>;  // bytes, rank

}  // namespace

WholeHolders::WholeHolders(std::span<const PlannedTensor* const> tensors, comm::Group& ranks,
                           Stream& stream)
    : words_((tensors.size() + 63) / 64) {
  Numbers mine(words_);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i]->whole) mine[i / 64] |= int64_t{1} << (i % 64);
  }
  bits_ = gather(ranks, stream, mine, "checkpoint: holders");
  for (int rank = 0; rank < ranks.size(); ++rank) {
    for (size_t i = 0; i < tensors.size() && all_; ++i) all_ = holds(rank, i);
  }
}

void assign_writers(std::span<PlannedTensor* const> tensors, int ranks,
                    const WholeHolders& holders) {
  std::vector<size_t> order(tensors.size());
  int64_t total = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
    total += tensors[i]->bytes();
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return tensors[a]->bytes() > tensors[b]->bytes(); });
  const int64_t share = ceil_div(total, ranks);
  std::vector<int64_t> loads(static_cast<size_t>(ranks));
  std::set<Load> by_load;
  for (int rank = 0; rank < ranks; ++rank) by_load.emplace(0, rank);
  for (const size_t i : order) {
    const int64_t bytes = tensors[i]->bytes();
    const Load least = *by_load.begin();
    Load chosen = least;
    if (!holders.holds(least.second, i)) {
      Load holder = {INT64_MAX, -1};
      for (int rank = 0; rank < ranks; ++rank) {
        if (holders.holds(rank, i))
          holder = std::min(holder, Load(loads[static_cast<size_t>(rank)], rank));
      }
      if (holder.second >= 0 && (holder.first == least.first || holder.first + bytes <= share))
        chosen = holder;
    }
    tensors[i]->writer = chosen.second;
    by_load.erase(chosen);
    by_load.emplace(chosen.first + bytes, chosen.second);
    loads[static_cast<size_t>(chosen.second)] += bytes;
  }
}

}  // namespace megatron::checkpoint
