// A tile of a product by fused multiply-adds in f32 or f64. Each element's terms are added in order
// of k.
#pragma once

#include "kernels/cuda/grouped_gemm/operand.h"

namespace megatron::kernels::cuda {

template <class Sum>
struct PlainTile {
  static constexpr int kRows = 64, kColumns = 64, kDepth = 16;
  // A thread computes kOwn adjacent rows and columns.
  static constexpr int kOwn = 4, kAcross = kColumns / kOwn, kPitch = kRows + kOwn;
  static_assert(kRows == kColumns && kRows / kOwn * kAcross == kProductThreads);

  template <class From>
  __device__ static void fetch(const From& from, int64_t first, int64_t depth,
                               Sum (&tile)[kDepth][kPitch]) {
#pragma unroll
    for (int c = static_cast<int>(threadIdx.x); c < kDepth * kRows; c += kProductThreads) {
      const int i = From::kInside ? c / kDepth : c % kRows,
                d = From::kInside ? c % kDepth : c / kRows;
      const bool there = i < from.places && first + d < depth;
      tile[d][i] = there ? static_cast<Sum>(from.value(i, first + d)) : Sum(0);
    }
  }

  // Calls store(row, column, values) for every kOwn adjacent values of a row that begin inside the
  // tile. Every thread of the block calls this. a, b: as Operand.
  template <class A, class B, class Store>
  __device__ static void multiply(const A& a, const B& b, int64_t depth, const Store& store) {
    alignas(16) __shared__ Sum a_tile[kDepth][kPitch];
    alignas(16) __shared__ Sum b_tile[kDepth][kPitch];
    const int row = static_cast<int>(threadIdx.x) / kAcross * kOwn;
    const int column = static_cast<int>(threadIdx.x) % kAcross * kOwn;
    Vector<Sum, kOwn> sums[kOwn] = {};
    for (int64_t first = 0; first < depth; first += kDepth) {
      fetch(a, first, depth, a_tile);
      fetch(b, first, depth, b_tile);
      __syncthreads();
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        const Vector<Sum, kOwn> x = load_chunk<kOwn>(a_tile[d] + row, kOwn, true);
        const Vector<Sum, kOwn> y = load_chunk<kOwn>(b_tile[d] + column, kOwn, true);
#pragma unroll
        for (int i = 0; i < kOwn; ++i)
#pragma unroll
          for (int j = 0; j < kOwn; ++j) sums[i].at[j] = std::fma(x.at[i], y.at[j], sums[i].at[j]);
      }
      __syncthreads();
    }
    if (column >= b.places) return;
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
      if (row + i < a.places) store(row + i, column, sums[i]);
  }
};

}  // namespace megatron::kernels::cuda
