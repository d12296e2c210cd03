// Prefetch of keys and values that are read in place.
#pragma once

#include <algorithm>
#include <limits>

#include "kernels/cpu/attention/blocks.h"
#include "kernels/cpu/attention/pack.h"

namespace megatron::kernels::cpu {

// Prefetches the keys and values of a range of (sample, key head), in the order in which attention
// reads them, however many there are of each sample.
class KeysAhead {
 public:
  struct Keys {
    int64_t begin, end;
  };
  // heads: [begin, end), numbered sample by sample. keys: the only ones of a single head.
  KeysAhead(const AttentionArgs& args, const AttentionSizes& sizes, int64_t begin, int64_t end,
            Keys keys = {0, std::numeric_limits<int64_t>::max()})
      : args_(args), sizes_(sizes), only_(keys), head_(begin), end_(sizes.keys > 0 ? end : begin) {
    if (head_ < end_) enter();
  }

  // Prefetches a block of keys, before lines() is called.
  void block() { lines(kKeyColumns * (lines_of(sizes_.key) + lines_of(sizes_.value))); }

  // Prefetches the next `count` lines into the L2 cache. Keys and values alternate in panels.
  void lines(int64_t count) {
    for (; count > 0; --count) {
      if (rows_ == 0 && !next_part()) return;
      __builtin_prefetch(at_, 0, 2);
      at_ += kLineBytes;
      if (at_ < row_end_) continue;
      at_ = row_ += stride_;
      row_end_ += stride_;
      --rows_;
    }
  }

 private:
  static constexpr int64_t kLineBytes = 64;

  int64_t lines_of(const AttentionSizes::Width& width) const {
    return ceil_div(width.elements * size_of(args_.k.dtype()), kLineBytes);
  }

  // Moves on to the values of the last part of keys, or to the next keys. False if there are none.
  bool next_part() {
    if (head_ == end_) return false;
    const int64_t sample = head_ / sizes_.kv_heads, key_head = head_ % sizes_.kv_heads;
    const int64_t part = std::min(last_ - next_, kPanel - next_ % kPanel);
    const KeyRows rows(of_values_ ? args_.v : args_.k, args_.block_table, sample, key_head);
    const MatrixRows from = rows.from(next_);
    const int64_t size = size_of(from.type);
    stride_ = from.stride * size;
    row_ = at_ = from.base;
    row_end_ = at_ + (of_values_ ? sizes_.value : sizes_.key).elements * size;
    rows_ = part;
    of_values_ = !of_values_;
    if (of_values_) return true;
    next_ += part;
    if (next_ == last_ && ++head_ < end_) enter();
    return true;
  }

  // Finds the range of keys that the head's queries see, at least one key.
  void enter() {
    const int64_t sample = head_ / sizes_.kv_heads;
    next_ = 0;
    last_ = sizes_.keys;
    if (sizes_.k_positions.defined()) return;
    int64_t first = last_, end = 0;
    for (int64_t t = 0; t < sizes_.queries; ++t) {
      first = std::min<int64_t>(first, sizes_.key_begin(sample, t));
      end = std::max<int64_t>(end, int64_t{1} + sizes_.limit(sample, t));
    }
    last_ = std::clamp<int64_t>(end, 1, last_);
    next_ = std::clamp<int64_t>(first / kPanel * kPanel, 0, last_ - 1);
    next_ = std::max(next_, only_.begin);
    last_ = std::min(last_, only_.end);
    if (next_ >= last_) end_ = head_;
  }

  const AttentionArgs& args_;
  const AttentionSizes& sizes_;
  Keys only_;
  int64_t head_, end_;
  int64_t next_ = 0, last_ = 0;  // keys of the head
  bool of_values_ = false;       // the next part is of values
  const std::byte *row_ = nullptr, *row_end_ = nullptr, *at_ = nullptr;
  int64_t stride_ = 0, rows_ = 0;  // rows left of the part
};

}  // namespace megatron::kernels::cpu
