#include "tokenizers/models/bpe_merges.h"

#include <algorithm>
#include <array>

namespace megatron::tokenizers {
namespace {

constexpr size_t kShort = 48;  // up to this size, scanning all neighbours beats a queue

int32_t id_of(int64_t merge) { return static_cast<int32_t>(merge & 0xffffffff); }

}  // namespace

BpeMerges::BpeMerges(const Definition& definition) : merges_(definition.merges.size()) {
  for (size_t rank = 0; rank < definition.merges.size(); ++rank) {
    const Merge& merge = definition.merges[rank];
    merges_[pair_key(merge.left, merge.right)] = static_cast<int64_t>(rank) << 32 | merge.joined;
  }
}

BpeMerges::BpeMerges(const std::vector<Merge>& merges) : merges_(merges.size()) {
  for (const Merge& merge : merges) {
    merges_[pair_key(merge.left, merge.right)] =
        static_cast<int64_t>(merge.joined) << 32 | merge.joined;
  }
}

void BpeMerges::apply(Scratch& scratch, std::vector<Range>* ranges) const {
  if (scratch.symbols.size() > kShort) {
    apply_long(scratch, ranges);
  } else if (scratch.symbols.size() > 1) {
    apply_short(scratch, ranges);
  }
}

void BpeMerges::apply_short(Scratch& scratch, std::vector<Range>* ranges) const {
  std::array<int64_t, kShort> merges;
  int32_t* symbols = scratch.symbols.data();
  size_t n = scratch.symbols.size();
  for (size_t i = 0; i + 1 < n; ++i) merges_.prefetch(symbols[i], symbols[i + 1]);
  for (size_t i = 0; i + 1 < n; ++i) merges[i] = merge_of(symbols[i], symbols[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (merges[i] >> 32 < merges[best] >> 32) best = i;
    }
    if (merges[best] == kNoMerge) break;
    symbols[best] = id_of(merges[best]);
    --n;
    if (best > 0) merges_.prefetch(symbols[best - 1], symbols[best]);
    if (best + 1 < n) merges_.prefetch(symbols[best], symbols[best + 2]);
    std::copy(symbols + best + 2, symbols + n + 1, symbols + best + 1);
    std::copy(merges.data() + best + 1, merges.data() + n, merges.data() + best);
    if (ranges) {
      (*ranges)[best].end = (*ranges)[best + 1].end;
      ranges->erase(ranges->begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    if (best > 0) merges[best - 1] = merge_of(symbols[best - 1], symbols[best]);
    if (best + 1 < n) merges[best] = merge_of(symbols[best], symbols[best + 1]);
  }
  scratch.symbols.resize(n);
}

// A queue of (merge, position). An entry counts only while its merge is still the one at that
// position.
void BpeMerges::apply_long(Scratch& scratch, std::vector<Range>* ranges) const {
  struct Candidate {
    int64_t merge;
    size_t position;
  };
  const auto later = [](const Candidate& a, const Candidate& b) {
    const int64_t left = a.merge >> 32, right = b.merge >> 32;
    return left != right ? left > right : a.position > b.position;
  };
  std::vector<int32_t>& symbols = scratch.symbols;
  std::vector<int64_t>& merges = scratch.merges;
  const size_t n = symbols.size();
  std::vector<size_t> next(n), previous(n);
  std::vector<Candidate> queue;
  merges.assign(n, kNoMerge);
  for (size_t i = 0; i < n; ++i) {
    next[i] = i + 1, previous[i] = i - 1;
    if (i + 1 == n) break;
    merges[i] = merge_of(symbols[i], symbols[i + 1]);
    if (merges[i] != kNoMerge) queue.push_back({merges[i], i});
  }
  std::make_heap(queue.begin(), queue.end(), later);
  const auto renew = [&](size_t i) {
    merges[i] = next[i] < n ? merge_of(symbols[i], symbols[next[i]]) : kNoMerge;
    if (merges[i] == kNoMerge) return;
    queue.push_back({merges[i], i});
    std::push_heap(queue.begin(), queue.end(), later);
  };
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), later);
    const Candidate top = queue.back();
    queue.pop_back();
    const size_t i = top.position;
    if (merges[i] != top.merge) continue;
    const size_t gone = next[i];
    symbols[i] = id_of(top.merge);
    symbols[gone] = -1;
    if (ranges) (*ranges)[i].end = (*ranges)[gone].end;
    merges[gone] = kNoMerge;
    next[i] = next[gone];
    if (next[i] < n) previous[next[i]] = i;
    renew(i);
    if (i > 0) renew(previous[i]);
  }
  if (ranges) {
    size_t kept = 0;
    for (size_t i = 0; i < n; ++i) {
      if (symbols[i] >= 0) (*ranges)[kept++] = (*ranges)[i];
    }
    ranges->resize(kept);
  }
  std::erase(symbols, -1);
}

}  // namespace megatron::tokenizers
