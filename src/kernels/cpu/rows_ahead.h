// Software prefetch in memory order. It is faster than prefetching in the order of use, by a third
// if several rows are read at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/divide.h"

namespace megatron::kernels::cpu {

// Prefetches the lines of rows of memory, a few at a time. Functions that prefetch are always
// inlined: GCC 12 assumes that a function which does nothing else has no effect and drops calls of
// it.
class RowsAhead {
 public:
  RowsAhead() = default;
  // Lines are prefetched into the L2 cache, since there may be many.
  RowsAhead(const void* base, int64_t rows, int64_t row_bytes, int64_t stride_bytes)
      : row_(static_cast<const std::byte*>(base)),
        row_bytes_(row_bytes),
        stride_(stride_bytes),
        rows_(rows > 0 && row_bytes > 0 ? rows : 0),
        at_(row_) {
    if (stride_ != row_bytes_ || rows_ == 0) return;
    row_bytes_ *= rows_;
    rows_ = 1;
  }
  [[gnu::always_inline]] void lines(int64_t count) {
    for (; count > 0 && rows_ > 0; --count) {
      __builtin_prefetch(at_, 0, 2);
      at_ += kLineBytes;
      if (at_ - row_ < row_bytes_) continue;
      at_ = row_ += stride_;
      --rows_;
    }
  }
  int64_t all() const { return rows_ * (ceil_div(row_bytes_, kLineBytes)); }

 private:
  static constexpr int64_t kLineBytes = 64;
  const std::byte* row_ = nullptr;
  int64_t row_bytes_ = 0, stride_ = 0, rows_ = 0;
  const std::byte* at_ = nullptr;
};

// Prefetches one run of `bytes` into the L1 cache.
[[gnu::always_inline]] inline void prefetch(const void* begin, int64_t bytes) {
  const auto* p = static_cast<const std::byte*>(begin);
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i);
}

// Distance in elements of T at which a loop over consecutive memory prefetches: 2 KB.
template <class T>
inline constexpr int64_t kElementsAhead = 2048 / static_cast<int64_t>(sizeof(T));

}  // namespace megatron::kernels::cpu
