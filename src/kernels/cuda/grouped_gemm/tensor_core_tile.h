// A tile of a grouped product in bf16 or f16 on tensor cores with f32 sums. Each element's terms
// are added in order of k, 16 at a time, the same for every tile. Rows of tiles are padded by 16
// bytes, so that eight rows of a matrix use different banks.
#pragma once

#include "kernels/cuda/grouped_gemm/operand.h"
#include "kernels/cuda/operands.h"

namespace megatron::kernels::cuda {

// An operand's part of a tile in shared memory, in the same layout as in global memory.
template <class T, bool kDepthInside, int kPlaces, int kDepth>
struct OperandTile {
  static constexpr int kHeight = kDepthInside ? kPlaces : kDepth;
  static constexpr int kWidth = kDepthInside ? kDepth : kPlaces, kPitch = kWidth + 8;
  alignas(16) T at[kHeight * kPitch];

  // Fetches depths (indices along k) from `first` on; zeros from `depth` on and beyond the
  // operand's last place. The data is valid once every thread has waited for its copies and the
  // block has synchronised. Copies one chunk after another, because the sums leave few registers
  // for addresses.
  __device__ void fetch(const Operand<T, kDepthInside>& from, int64_t first, int64_t depth) {
    constexpr int N = kChunk<T>, kChunks = kWidth / N;
    const int64_t height = kDepthInside ? from.places : depth - first;
    const int64_t width = kDepthInside ? depth - first : from.places;
    const T* data = from.data + (kDepthInside ? first : first * from.pitch);
    if (from.whole) {
#pragma unroll 1
      for (int c = static_cast<int>(threadIdx.x); c < kHeight * kChunks; c += kProductThreads) {
        const int i = c / kChunks, d = c % kChunks * N;
        const bool there = i < height && d < width;
        copy_later<kVectorBytes>(at + i * kPitch + d, there ? data + i * from.pitch + d : data,
                                 there);
      }
    } else {
#pragma unroll 1
      for (int c = static_cast<int>(threadIdx.x); c < kHeight * kWidth; c += kProductThreads) {
        const int i = c / kWidth, d = c % kWidth;
        const bool there = i < height && d < width;
        at[i * kPitch + d] = there ? data[i * from.pitch + d] : T(0.0f);
      }
    }
  }
  __device__ Matrices left(int place, int d) const {
    return left_operand<kDepthInside>(at, kPitch, place, d);
  }
  __device__ Matrices right(int place, int d) const {
    return right_operand<kDepthInside>(at, kPitch, place, d);
  }
};

// kRows is 64 or 128. The warps form a grid of kDown rows and kAcross columns.
template <class T, bool kInsideA, bool kInsideB, int kTileRows>
struct TensorCoreTile {
  static constexpr int kRows = kTileRows, kColumns = 128, kDepth = 32;
  static constexpr int kAcross = 4, kDown = kProductThreads / kWarp / kAcross;
  static constexpr int kStrips = kRows / kDown / 16, kBlocks = kColumns / kAcross / 8;
  using A = OperandTile<T, kInsideA, kRows, kDepth>;
  using B = OperandTile<T, kInsideB, kColumns, kDepth>;
  using Sums = float[kStrips][kBlocks][4];

  // Adds the products of the warp's strips, which begin at the tile's `row` and `column`.
  __device__ static void add_products(const A& a, const B& b, int row, int column, Sums& sums) {
#pragma unroll
    for (int d = 0; d < kDepth; d += 16) {
      Matrices x[kStrips];
#pragma unroll
      for (int i = 0; i < kStrips; ++i) x[i] = a.left(row + 16 * i, d);
#pragma unroll
      for (int j = 0; j < kBlocks; j += 2) {
        const Matrices y = b.right(column + 8 * j, d);
#pragma unroll
        for (int i = 0; i < kStrips; ++i) {
          multiply_add<T>(x[i], y.at[0], y.at[1], sums[i][j]);
          multiply_add<T>(x[i], y.at[2], y.at[3], sums[i][j + 1]);
        }
      }
    }
  }

  // As PlainTile's, with pairs of values.
  template <class Store>
  __device__ static void multiply(const Operand<T, kInsideA>& a, const Operand<T, kInsideB>& b,
                                  int64_t depth, const Store& store) {
    __shared__ A a_tiles[2];
    __shared__ B b_tiles[2];
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    const int row = warp / kAcross * kStrips * 16, column = warp % kAcross * kBlocks * 8;
    const bool is_needed = row < a.places && column < b.places;
    const auto fetch = [&](int64_t first, int stage) {
      if (first >= depth) return;
      a_tiles[stage].fetch(a, first, depth);
      b_tiles[stage].fetch(b, first, depth);
    };
    Sums sums = {};
    fetch(0, 0);
    wait_for_copies();
    __syncthreads();
    int stage = 0;
    for (int64_t first = 0; first < depth; first += kDepth, stage ^= 1) {
      fetch(first + kDepth, stage ^ 1);
      if (is_needed) add_products(a_tiles[stage], b_tiles[stage], row, column, sums);
      wait_for_copies();
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kStrips; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int r = row + 16 * i + 8 * h + lane / 4;
        if (r >= a.places) continue;
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
          const int c = column + 8 * j + lane % 4 * 2;
          if (c < b.places)
            store(r, c, Vector<float, 2>{{sums[i][j][2 * h], sums[i][j][2 * h + 1]}});
        }
      }
    }
  }
};

}  // namespace megatron::kernels::cuda
