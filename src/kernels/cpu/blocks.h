// Divides work into blocks that depend on shapes only, computes partial sums of such blocks, and
// writes outputs with streaming stores. (add_partial_rows also divides columns by threads, since
// each column is summed on its own.)
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <initializer_list>

#include "base/divide.h"
#include "base/dtype.h"
#include "device/stream.h"
#include "kernels/norm.h"

namespace megatron::kernels::cpu {

// Elements per block of element-wise work: enough to hide the scheduling cost, few enough for the
// L2 cache.
inline constexpr int64_t kBlockElements = 32768;

// Rows per block if a row has `width` elements.
inline int64_t rows_per_block(int64_t width) {
  return std::max<int64_t>(1, kBlockElements / std::max<int64_t>(1, width));
}

// An output that the call does not read. Vectors are stored normally or, if `streamed`, with
// streaming stores (simd-inl.h).
template <class T>
struct Output {
  T* p;
  bool streamed;
  Output operator+(int64_t i) const { return {p + i, streamed}; }
};

// A normal store first reads the line that it writes, a third of the traffic of an element-wise
// kernel. Outputs of at least this size are streamed, since their first lines would be evicted from
// a core's share of the last-level cache before they are read anyway.
inline constexpr int64_t kStreamedBytes = int64_t{2} << 20;

inline constexpr int64_t kCacheLine = 64;

// True if `out` is large and none of the inputs is `out` itself, whose lines would already be in
// the cache.
bool passes_caches(const Tensor& out, std::initializer_list<const void*> inputs);
// Also requires that runs which begin at multiples of `step` elements begin at cache lines, so that
// all of their vectors can be streamed.
bool is_streamed(const Tensor& out, int64_t step, std::initializer_list<const void*> inputs);

template <class T>
Output<T> output_of(const Tensor& out, int64_t step, std::initializer_list<const void*> inputs) {
  return {out.data<T>(), is_streamed(out, step, inputs)};
}

// memcpy with streaming stores. `to` and `bytes` are multiples of cache lines. Prefetches as much
// from `ahead`, one line per copied line; if rows are far apart, that is faster than prefetching a
// whole row first. ahead == from prefetches nothing else.
void copy_streamed(const void* from, void* to, int64_t bytes, const void* ahead);

// Waits until all streaming stores of this thread are visible to others. Without it, other threads
// might see the flag that a block is done before its data. (No test can show that it is missing:
// the window is a few hundred cycles.)
void finish_streamed_stores();

// Calls f(block, thread) for each block of [0, count). All stores of a block are visible to every
// thread once it counts as done. Kernels that stream must use this or for_blocks.
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

// Reductions over rows: each block of rows gives one partial row in f32. At most `most` blocks, of
// at least 32 rows.
struct RowBlocks {
  explicit RowBlocks(int64_t rows, int64_t most = 128);
  int64_t rows, height, count;
};

// Scratch for the partial rows of `blocks`, [count, width] f32.
Tensor partial_rows(const RowBlocks& blocks, int64_t width, Stream& stream);
// to.out = sum of the partial rows in ascending order + to.beta * to.out.
void add_partial_rows(const Tensor& partials, const Accumulate& to, Stream& stream);

// Raises *most, a float that is not negative, to the value. The order of calls does not matter.
inline void raise(float* most, float value) {
  std::atomic_ref<uint32_t> bits(*reinterpret_cast<uint32_t*>(most));
  const uint32_t wanted = std::bit_cast<uint32_t>(value);
  uint32_t now = bits.load(std::memory_order_relaxed);
  while (now < wanted && !bits.compare_exchange_weak(now, wanted, std::memory_order_relaxed)) {
  }
}

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
