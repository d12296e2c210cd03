// Tiles of a scan: square matrices in shared memory, of as many rows as a chunk has tokens, and
// their products in registers. bf16 and f16 are multiplied on tensor cores (tensor_cores.h), f32 by
// fused multiply-adds. An element's terms are added in the order of the depth, whatever other rows
// and columns are. Rows of tiles are padded by 16 bytes, so that eight rows use different banks.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/attention/tiles.h"
#include "kernels/cuda/operands.h"
#include "kernels/state_scan.h"

namespace megatron::kernels::cuda {

inline constexpr int kSide = static_cast<int>(kScanChunk);
inline constexpr int kScanThreads = kTileThreads, kScanWarps = kScanThreads / kWarp;

template <class T>
struct ScanTile {
  static constexpr int kPitch = kSide + kChunk<T>;
  alignas(16) T at[kSide * kPitch];

  __device__ T* row(int i) { return at + i * kPitch; }
  __device__ const T* row(int i) const { return at + i * kPitch; }
};

// An operand's rows are places, with depths along them, or depths, with places along them
// (operands.h).
enum class Depth { inside, outside };

// Where a triangular operand, or the needed part of a result, has elements: depths from `begin` to
// `end` and columns before `columns`. The rest is 0, or not needed, and may be left out.
struct Reach {
  int begin = 0, end = kSide, columns = kSide;
};

// A thread's elements of a tile.
template <class T>
struct ScanSums {
  static constexpr bool kTensorCores = sizeof(T) == 2;
  static constexpr int kCount = kSide * kSide / kScanThreads;
  float of[kCount / 4][4] = {};

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / kWarp; }
  __device__ static int row(int i) {
    if constexpr (kTensorCores) return 16 * warp() + lane() / 4 + i % 4 / 2 * 8;
    else return tile_row<kSide / kDown>(i / 4);
  }
  __device__ static int column(int i) {
    if constexpr (kTensorCores) return i / 4 * 8 + lane() % 4 * 2 + i % 2;
    else return across() + i % 4 * kAcross;
  }
  // Calls f(row, column, element) for all elements of the thread.
  template <class F>
  __device__ void each(F&& f) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) f(row(i), column(i), of[i / 4][i % 4]);
  }

  // Reach of the products with a lower triangle on the left (depths up to the row), and with the
  // transpose of one, and of a result of which only the lower triangle is needed.
  __device__ static Reach lower() {
    return kTensorCores ? Reach{.end = 16 * warp() + 16} : Reach{};
  }
  __device__ static Reach upper() { return kTensorCores ? Reach{.begin = 16 * warp()} : Reach{}; }
  __device__ static Reach lower_result() {
    return kTensorCores ? Reach{.columns = 16 * warp() + 16} : Reach{};
  }
  // True if the warp has elements of the rows [begin, end).
  __device__ static bool has_rows(int begin, int end) {
    return !kTensorCores || (16 * warp() < end && begin < 16 * warp() + 16);
  }

  // Adds a b. All threads of a block call this.
  template <Depth kDepthOfA, Depth kDepthOfB>
  __device__ void add_product(const ScanTile<T>& a, const ScanTile<T>& b, const Reach& reach = {}) {
    if constexpr (kTensorCores) add_on_tensor_cores<kDepthOfA, kDepthOfB>(a, b, reach);
    else add_plainly<kDepthOfA, kDepthOfB>(a, b);
  }

  __device__ void add(const ScanSums& other) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) of[i / 4][i % 4] += other.of[i / 4][i % 4];
  }

  // to[i] += sum over the columns j of the elements times weight(i, j). All threads of a block call
  // this.
  template <class S, class Weight>
  __device__ void add_rows(S* to, const Weight& weight) const {
    if constexpr (kTensorCores) {
#pragma unroll
      for (int h = 0; h < 4; h += 2) {
        S sum = 0;
#pragma unroll
        for (int i = h; i < kCount; i += i % 2 == 0 ? 1 : 3)
          sum += static_cast<S>(of[i / 4][i % 4]) * static_cast<S>(weight(row(i), column(i)));
        sum += __shfl_xor_sync(kAllLanes, sum, 1);
        sum += __shfl_xor_sync(kAllLanes, sum, 2);
        if (lane() % 4 == 0) to[row(h)] += sum;
      }
    } else {
#pragma unroll
      for (int r = 0; r < kCount; r += 4) {
        S sum = 0;
#pragma unroll
        for (int i = r; i < r + 4; ++i)
          sum += static_cast<S>(of[i / 4][i % 4]) * static_cast<S>(weight(row(i), column(i)));
#pragma unroll
        for (int distance = kAcross / 2; distance > 0; distance /= 2)
          sum += __shfl_xor_sync(kAllLanes, sum, distance);
        if (across() == 0) to[row(r)] += sum;
      }
    }
  }
  // partial[warp][j] = sum of the elements of column j in the warp's rows. All threads of a block
  // call this.
  template <class S>
  __device__ void sum_columns(S (*partial)[kSide]) const {
    if constexpr (kTensorCores) {
#pragma unroll
      for (int i = 0; i < kCount; i += i % 2 == 0 ? 1 : 3) {
        S sum = static_cast<S>(of[i / 4][i % 4]) + static_cast<S>(of[i / 4][i % 4 + 2]);
#pragma unroll
        for (int distance = 4; distance < kWarp; distance *= 2)
          sum += __shfl_xor_sync(kAllLanes, sum, distance);
        if (lane() < 4) partial[warp()][column(i)] = sum;
      }
    } else {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        S sum = 0;
#pragma unroll
        for (int r = 0; r < kCount / 4; ++r) sum += static_cast<S>(of[r][c]);
        sum += __shfl_xor_sync(kAllLanes, sum, kAcross);
        if (lane() < kAcross) partial[warp()][column(c)] = sum;
      }
    }
  }

 private:
  template <Depth kDepthOfA, Depth kDepthOfB>
  __device__ void add_on_tensor_cores(const ScanTile<T>& a, const ScanTile<T>& b,
                                      const Reach& reach) {
    constexpr int kPitch = ScanTile<T>::kPitch;
#pragma unroll
    for (int d = 0; d < kSide; d += 16) {
      if (d < reach.begin || d >= reach.end) continue;
      const Matrices x = left_operand < kDepthOfA == Depth::inside > (a.at, kPitch, 16 * warp(), d);
#pragma unroll
      for (int c = 0; c < kSide; c += 16) {
        if (c >= reach.columns) continue;
        const Matrices y = right_operand < kDepthOfB == Depth::inside > (b.at, kPitch, c, d);
        multiply_add<T>(x, y.at[0], y.at[1], of[c / 8]);
        multiply_add<T>(x, y.at[2], y.at[3], of[c / 8 + 1]);
      }
    }
  }

  template <Depth kDepthOfA, Depth kDepthOfB>
  __device__ void add_plainly(const ScanTile<T>& a, const ScanTile<T>& b) {
    constexpr int kRows = kCount / 4;
#pragma unroll 1
    for (int d = 0; d < kSide; d += 4) {
      float y[4][4];  // by column, then depth
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if constexpr (kDepthOfB == Depth::inside) {
          const Vector<float, 4> v = load_vector<float, 4>(b.row(column(c)) + d);
#pragma unroll
          for (int e = 0; e < 4; ++e) y[c][e] = v.at[e];
        } else {
#pragma unroll
          for (int e = 0; e < 4; ++e) y[c][e] = b.row(d + e)[column(c)];
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; r += 4) {  // four adjacent rows
        float x[4][4];                      // by row, then depth
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const Vector<float, 4> v = kDepthOfA == Depth::inside
                                         ? load_vector<float, 4>(a.row(row(4 * (r + n))) + d)
                                         : load_vector<float, 4>(a.row(d + n) + row(4 * r));
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            if constexpr (kDepthOfA == Depth::inside) x[n][e] = v.at[e];
            else x[e][n] = v.at[e];
          }
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
#pragma unroll
          for (int n = 0; n < 4; ++n) {
#pragma unroll
            for (int c = 0; c < 4; ++c) of[r + n][c] = fmaf(x[n][e], y[c][e], of[r + n][c]);
          }
        }
      }
    }
  }
};

// Rows [0, end) of a matrix of `width` columns; `pitch` elements from row to row. Those before
// `begin` are in another place, or 0 if that is null.
template <class From>
struct MatrixRows {
  From* data;  // row `begin`
  int64_t pitch;
  int begin, end, width;
  bool whole;  // every row consists of whole chunks of the tile's type, aligned to 16 bytes
  const From* earlier = nullptr;
  int64_t earlier_pitch = 0;

  __device__ bool has(int i) const { return i < end && (i >= begin || earlier != nullptr); }
  __device__ From* new_row(int i) const { return data + (i - begin) * pitch; }
  __device__ const From* row(int i) const {
    return i < begin ? earlier + i * earlier_pitch : new_row(i);
  }
};

struct Unscaled {};

// Fills a tile with the elements from (first_row, first_column) on, row i times factor(i); elements
// beyond the matrix are 0. All threads of a block call this.
template <class T, class From, class Factor = Unscaled>
__device__ void fill_tile(ScanTile<T>& tile, const MatrixRows<From>& rows, int first_row,
                          int first_column, const Factor& factor = {}) {
  constexpr int N = kChunk<T>, kChunks = kSide / N;
#pragma unroll(sizeof(From) > sizeof(T) ? 2 : 4)
  for (int c = static_cast<int>(threadIdx.x); c < kSide * kChunks; c += kScanThreads) {
    const int i = c / kChunks, d = c % kChunks * N;
    const int row = first_row + i, left = rows.width - first_column - d;
    Vector<T, N> to{};
    if (rows.has(row) && left > 0) {
      using Plain = std::remove_const_t<From>;
      const Vector<Plain, N> from = load_chunk<N>(
          static_cast<const Plain*>(rows.row(row)) + first_column + d, left, rows.whole);
      if constexpr (std::is_same_v<Factor, Unscaled> && std::is_same_v<Plain, T>) {
        to = from;
      } else {
        float scale = 1.0f;
        if constexpr (!std::is_same_v<Factor, Unscaled>) scale = factor(row);
#pragma unroll
        for (int n = 0; n < N; ++n) to.at[n] = from_float<T>(to_float(from.at[n]) * scale);
      }
    }
    store_vector(tile.row(i) + d, to);
  }
}

// Stores a tile's rows [begin, end) in the columns from `first_column` on. All threads of a block
// call this.
template <class T>
__device__ void store_tile(const ScanTile<T>& tile, const MatrixRows<T>& to, int first_column) {
  constexpr int N = kChunk<T>, kChunks = kSide / N;
#pragma unroll 4
  for (int c = static_cast<int>(threadIdx.x); c < kSide * kChunks; c += kScanThreads) {
    const int i = c / kChunks, d = c % kChunks * N, left = to.width - first_column - d;
    if (i < to.begin || i >= to.end || left <= 0) continue;
    store_chunk(to.new_row(i) + first_column + d, load_vector<T, N>(tile.row(i) + d), left,
                to.whole);
  }
}

// Sums as they lie in the registers, in scratch memory of kSide x kSide elements. A thread reads
// and writes its own elements only.
__device__ inline float& sum_at(float* sums, int i) {
  return sums[i * kScanThreads + static_cast<int>(threadIdx.x)];
}
__device__ inline float sum_at(const float* sums, int i) {
  return sums[i * kScanThreads + static_cast<int>(threadIdx.x)];
}
template <class T>
__device__ void store_sums(const ScanSums<T>& sums, float* to) {
#pragma unroll
  for (int i = 0; i < ScanSums<T>::kCount; ++i) sum_at(to, i) = sums.of[i / 4][i % 4];
}
template <class T>
__device__ void add_sums(const float* from, ScanSums<T>& sums) {
#pragma unroll
  for (int i = 0; i < ScanSums<T>::kCount; ++i) sums.of[i / 4][i % 4] += sum_at(from, i);
}

}  // namespace megatron::kernels::cuda
