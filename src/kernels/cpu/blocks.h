// Work cut in blocks that depend on shapes only, and the partial sums of such blocks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/dtype.h"
#include "device/stream.h"
#include "kernels/norm.h"

namespace megatron::kernels::cpu {

// Elements of one block of element-wise work: long enough to hide the cost of handing it out, short
// enough for L2.
inline constexpr int64_t kBlockElements = 32768;

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows of a block, when a row has `width` elements.
inline int64_t rows_per_block(int64_t width) {
  return std::max<int64_t>(1, kBlockElements / std::max<int64_t>(1, width));
}

// Calls f(begin, end) for each block of [0, n).
template <class F>
void for_blocks(Stream& stream, int64_t n, int64_t block, F&& f) {
  if (n <= 0) return;
  stream.pool().parallel_for(ceil_div(n, block), [&](int64_t index, int) {
    f(index * block, std::min(n, (index + 1) * block));
  });
}

// Reductions over rows: each block of rows gives one partial row in f32. At most 128 blocks, of at
// least 32 rows.
struct RowBlocks {
  explicit RowBlocks(int64_t rows);
  int64_t rows, height, count;
};

// Scratch for the partial rows of `blocks`, [count, width] f32.
Tensor partial_rows(const RowBlocks& blocks, int64_t width, Stream& stream);
// to.out = sum of the partial rows in ascending order + to.beta * to.out.
void add_partial_rows(const Tensor& partials, const Accumulate& to, Stream& stream);

// Calls f(T{}) with T the storage type (float or bf16). Throws Error naming the kernel and the type
// for any other.
[[noreturn]] void refuse_type(const char* kernel, DType type);
inline void require_storage_type(const char* kernel, DType type) {
  if (type != DType::f32 && type != DType::bf16) refuse_type(kernel, type);
}
template <class F>
void for_storage_type(const char* kernel, DType type, F&& f) {
  switch (type) {
    case DType::f32: return f(float{});
    case DType::bf16: return f(bf16{});
    default: refuse_type(kernel, type);
  }
}

}  // namespace megatron::kernels::cpu
