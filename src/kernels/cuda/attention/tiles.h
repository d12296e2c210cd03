// Tiles of attention in shared memory, and their products in registers. The 128 threads form 8 rows
// of 16: a thread owns the rows tile_row(0), tile_row(1), ... of a result tile, and their columns
// across + 16 j (products) or groups of four at 4 (across + 16 c) (weighted sums). The same
// half-warp writes and reads a row of weights. Rows of tiles are padded by four words, so that the
// rows that a warp reads together use different banks.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/chunk.h"
#include "kernels/cuda/numbers.h"
#include "kernels/cuda_scratch/attention.h"
#include "tensor/tensor.h"

namespace megatron::kernels::cuda {

inline constexpr int kTileThreads = kAttentionThreads, kAcross = 16, kDown = kTileThreads / kAcross;

constexpr int padded(int width) { return width + 4; }

__device__ inline int across() { return static_cast<int>(threadIdx.x) % kAcross; }
__device__ inline int down() { return static_cast<int>(threadIdx.x) / kAcross; }

// Index of the i-th of a thread's kCount rows; up to four are adjacent. rows_below: distance from
// row 0.
template <int kCount>
inline constexpr int kNeighbours = kCount < 4 ? kCount : 4;
template <int kCount>
__device__ constexpr int rows_below(int i) {
  return kNeighbours<kCount> * (i / kNeighbours<kCount> * kDown) + i % kNeighbours<kCount>;
}
template <int kCount>
__device__ int tile_row(int i) {
  return kNeighbours<kCount> * down() + rows_below<kCount>(i);
}

// A tensor [samples, positions, heads, width] whose last dimension is contiguous.
template <class T>
struct HeadTensor {
  T* data;
  int64_t sample_stride, position_stride, head_stride;
  bool whole;  // every row consists of whole chunks aligned to their size
};
template <class T>
HeadTensor<T> head_tensor(const Tensor& tensor) {
  HeadTensor<T> heads{static_cast<T*>(tensor.address()), tensor.stride(0), tensor.stride(1),
                      tensor.stride(2), true};
  heads.whole = are_aligned({heads.data}) && tensor.size(3) % kChunk<T> == 0;
  for (int dim = 0; dim < 3; ++dim)
    heads.whole &= tensor.size(dim) <= 1 || tensor.stride(dim) % kChunk<T> == 0;
  return heads;
}

// Maps keys to pages (AttentionArgs::block_table). table is null if keys are not paged.
struct PageTable {
  const int32_t* table = nullptr;
  int blocks = 0;  // per sample
  int keys = 0;    // per page
};

// The rows of one sample and key head: row r has position r / group and is head r % group of
// `group`.
template <class T>
struct HeadRows {
  __device__ HeadRows(const HeadTensor<T>& tensor, int sample, int key_head, int heads)
      : data(tensor.data + sample * tensor.sample_stride +
             int64_t{key_head} * heads * tensor.head_stride),
        position_stride(tensor.position_stride),
        head_stride(tensor.head_stride),
        group(heads),
        whole(tensor.whole) {}
  __device__ T* row(int r) const {
    if (group == 1) return data + r * position_stride;
    const int position = r / group;
    return data + position * position_stride + (r - position * group) * head_stride;
  }
  T* data;
  int64_t position_stride, head_stride;
  int group;
  bool whole;
};

// The keys or values of one sample and key head: [samples, keys, heads, width], or pages of a pool.
template <class T>
struct KeyRows {
  __device__ KeyRows(const HeadTensor<T>& tensor, const PageTable& pages, int sample, int key_head)
      : data(tensor.data + int64_t{key_head} * tensor.head_stride),
        table(pages.table),
        position_stride(tensor.position_stride),
        page_stride(tensor.sample_stride),
        page(pages.keys),
        whole(tensor.whole) {
    if (table == nullptr) {
      data += sample * page_stride;
    } else {
      table += int64_t{sample} * pages.blocks;
    }
  }
  __device__ T* row(int j) const {
    if (table == nullptr) return data + j * position_stride;
    const int block = j / page;
    return data + table[block] * page_stride + (j - block * page) * position_stride;
  }
  T* data;
  const int32_t* table;
  int64_t position_stride, page_stride;
  int page;
  bool whole;
};

// Most loads that a thread has in flight. The sums of wide heads fill the registers, and compilers
// for GPUs before Hopper use them less economically.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
inline constexpr int kMaxLoads = 4;
#else
inline constexpr int kMaxLoads = 8;
#endif
template <int kWidth>
inline constexpr int kLoadsTogether = kWidth == 256 ? 4 : kMaxLoads;

// Loads rows first to first + kRows - 1 as f32; rows from `end` on and columns from `width` on are
// zero.
template <int kRows, int kWidth, template <class> class Rows, class T>
__device__ void load_tile(const Rows<T>& rows, int first, int end, int width, float* tile) {
  constexpr int N = kChunk<T>, kChunks = kWidth / N;
  if (rows.whole) {
#pragma unroll(kLoadsTogether<kWidth>)
    for (int c = static_cast<int>(threadIdx.x); c < kRows * kChunks; c += kTileThreads) {
      const int i = c / kChunks, d = c % kChunks * N;
      Vector<float, N> x{};
      if (first + i < end && d < width) {
        const Vector<T, N> stored = load_vector<T, N>(rows.row(first + i) + d);
        for (int n = 0; n < N; ++n) x.at[n] = to_float(stored.at[n]);
      }
      for (int n = 0; n < N; n += 4) {
        store_vector<float, 4>(tile + i * padded(kWidth) + d + n,
                               {x.at[n], x.at[n + 1], x.at[n + 2], x.at[n + 3]});
      }
    }
  } else {
#pragma unroll(kLoadsTogether<kWidth>)
    for (int c = static_cast<int>(threadIdx.x); c < kRows * kWidth; c += kTileThreads) {
      const int i = c / kWidth, d = c % kWidth;
      tile[i * padded(kWidth) + d] =
          first + i < end && d < width ? to_float(rows.row(first + i)[d]) : 0.0f;
    }
  }
}

// s[i][j] = sum over d of a[tile_row(i)][d] * b[across + 16 j][d], in order; width is rounded up to
// a multiple of four.
template <int kWidth, int kRows, int kColumns>
__device__ void tile_products(const float* a, const float* b, int width,
                              float (&s)[kRows][kColumns]) {
  constexpr int kPitch = padded(kWidth);
#pragma unroll
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kColumns; ++j) s[i][j] = 0;
  const float* a_row = a + tile_row<kRows>(0) * kPitch;
  const float* b_row = b + across() * kPitch;
#pragma unroll 1
  for (int d = 0; d < width; d += 4) {
    Vector<float, 4> x[kRows], y[kColumns];
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      x[i] = load_vector<float, 4>(a_row + rows_below<kRows>(i) * kPitch + d);
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
      y[j] = load_vector<float, 4>(b_row + j * kAcross * kPitch + d);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) s[i][j] = fmaf(x[i].at[e], y[j].at[e], s[i][j]);
      }
    }
  }
}

// Result columns per row that a thread owns.
constexpr int thread_columns(int width) { return width / kAcross; }

// out[i][4 c + e] += sum over j of weights[tile_row(i)][j] * v[j][4 (across + 16 c) + e], in order.
// Rows of `weights` are padded as well; kPitch is the distance of rows of v.
template <int kWidth, int kOthers, int kPitch = padded(kWidth), int kRows>
__device__ void add_weighted(const float* weights, const float* v,
                             float (&out)[kRows][thread_columns(kWidth)]) {
  constexpr int kWeightPitch = padded(kOthers);
  const float* weight_row = weights + tile_row<kRows>(0) * kWeightPitch;
  const float* column = v + 4 * across();
#pragma unroll 1
  for (int j = 0; j < kOthers; j += 4) {
    Vector<float, 4> w[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      w[i] = load_vector<float, 4>(weight_row + rows_below<kRows>(i) * kWeightPitch + j);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
#pragma unroll
      for (int c = 0; c < kWidth / (4 * kAcross); ++c) {
        const Vector<float, 4> y =
            load_vector<float, 4>(column + (j + e) * kPitch + c * 4 * kAcross);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
#pragma unroll
          for (int n = 0; n < 4; ++n)
            out[i][4 * c + n] = fmaf(w[i].at[e], y.at[n], out[i][4 * c + n]);
        }
      }
    }
  }
}

// Elements d to d + 3 of a row = factor * values, rounded; a zero is +0.
template <class T>
__device__ void store_four(T* row, bool whole, int d, int width, float factor,
                           const float* values) {
  Vector<T, 4> out;
#pragma unroll
  for (int n = 0; n < 4; ++n) out.at[n] = from_float<T>(values[n] * factor + 0.0f);
  if (whole && d < width) {
    store_vector<T, 4>(row + d, out);
  } else {
#pragma unroll
    for (int n = 0; n < 4; ++n)
      if (d + n < width) row[d + n] = out.at[n];
  }
}
// The same for all of a thread's columns.
template <int kWidth, class T>
__device__ void store_columns(T* row, bool whole, int width, float factor,
                              const float (&values)[thread_columns(kWidth)]) {
#pragma unroll
  for (int c = 0; c < kWidth / (4 * kAcross); ++c)
    store_four(row, whole, 4 * (across() + c * kAcross), width, factor, values + 4 * c);
}

// row[...] += factor * values, rounded.
template <int kWidth, class T>
__device__ void add_columns(T* row, int width, float factor,
                            const float (&values)[thread_columns(kWidth)]) {
#pragma unroll
  for (int c = 0; c < kWidth / (4 * kAcross); ++c) {
    const int d = 4 * (across() + c * kAcross);
#pragma unroll
    for (int n = 0; n < 4; ++n)
      if (d + n < width)
        row[d + n] = from_float<T>(fmaf(values[4 * c + n], factor, to_float(row[d + n])));
  }
}

}  // namespace megatron::kernels::cuda
