// Work cut in blocks that depend on shapes only (add_partial_rows cuts by threads, too: columns,
// each summed by itself), the partial sums of such blocks, and outputs that are written past the
// caches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "base/divide.h"
#include "base/dtype.h"
#include "device/stream.h"
#include "kernels/norm.h"

namespace megatron::kernels::cpu {

// Elements of one block of element-wise work: long enough to hide the cost of handing it out, short
// enough for L2.
inline constexpr int64_t kBlockElements = 32768;

// Rows of a block, when a row has `width` elements.
inline int64_t rows_per_block(int64_t width) {
  return std::max<int64_t>(1, kBlockElements / std::max<int64_t>(1, width));
}

// An output that the call does not read: every vector is stored as usual, or, where `streamed`,
// past the caches (simd-inl.h).
template <class T>
struct Output {
  T* p;
  bool streamed;
  Output operator+(int64_t i) const { return {p + i, streamed}; }
};

// An ordinary store first reads the line that it writes, a third of the traffic of an element-wise
// kernel. Outputs from this size on are streamed: their first lines would be gone from a core's
// share of the last cache before a reader comes.
inline constexpr int64_t kStreamedBytes = int64_t{2} << 20;

inline constexpr int64_t kCacheLine = 64;

// True if `out` is large and none of the inputs is `out` itself, whose lines would be in the cache
// when they are written.
bool passes_caches(const Tensor& out, std::initializer_list<const void*> inputs);
// And whether runs that start at multiples of `step` elements start at cache lines: then all of
// their vectors are streamed.
bool is_streamed(const Tensor& out, int64_t step, std::initializer_list<const void*> inputs);

template <class T>
Output<T> output_of(const Tensor& out, int64_t step, std::initializer_list<const void*> inputs) {
  return {out.data<T>(), is_streamed(out, step, inputs)};
}

// memcpy by streamed stores; `to` and `bytes` are multiples of cache lines. Asks for as much at
// `ahead`, a line with each that is copied: where rows lie apart, that is faster than to ask for
// a whole row before. `from` for nothing more than the copy itself.
void copy_streamed(const void* from, void* to, int64_t bytes, const void* ahead);

// Streamed stores of a thread are seen by others in any order, the flag that its block is done
// before the data perhaps: waits until all that this thread has stored is seen. (No test can show
// that it is missing: the window is some hundred cycles.)
void finish_streamed_stores();

// Calls f(block, thread) for each block of [0, count); all stores of a block are seen by everybody
// when it counts as done. Kernels that stream cut their work by this or by for_blocks.
template <class F>
void for_each_block(Stream& stream, int64_t count, F&& f) {
  if (count <= 0) return;
  stream.pool().parallel_shares(count, [&](int64_t index, int thread) {
    f(index, thread);
    finish_streamed_stores();
  });
}

// Calls f(begin, end) for each block of [0, n).
template <class F>
void for_blocks(Stream& stream, int64_t n, int64_t block, F&& f) {
  if (n <= 0) return;
  for_each_block(stream, ceil_div(n, block),
                 [&](int64_t index, int) { f(index * block, std::min(n, (index + 1) * block)); });
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

template <class T>
const T* data_or_null(const Tensor& tensor) {
  return tensor.defined() ? tensor.data<T>() : nullptr;
}

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
