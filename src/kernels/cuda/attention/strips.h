// Attention in bf16 and f16 on tensor cores: tiles in shared memory, and their products in
// registers (fragments: tensor_cores.h). Each warp computes strips of 16 result rows. In a strip,
// lane 4 g + t holds x[column / 8][2 h + e]: row g + 8 h, columns 2 t + e of every eight. The
// result of one product, once rounded, is thus the left operand of the next one. Rows of tiles are
// padded by 16 bytes, so that eight rows of a matrix use different banks.
#pragma once

#include <cmath>
#include <cstring>

#include "kernels/cuda/attention/gradients.h"
#include "kernels/cuda/tensor_cores.h"

namespace megatron::kernels::cuda {

inline constexpr int kStripRows = 16, kTileWarps = kTileThreads / kWarp;

constexpr int strip_pitch(int width) { return width + 8; }

__device__ inline int lane_of_warp() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline int warp_of_block() { return static_cast<int>(threadIdx.x) / kWarp; }
// g and t of this lane.
__device__ inline int strip_row() { return lane_of_warp() / 4; }
__device__ inline int strip_pair() { return lane_of_warp() % 4; }

// Calls f(T{}) with the device type of bf16 or f16.
template <class F>
void for_half_type(DType type, F&& f) {
  if (type == DType::bf16) {
    f(Bf16{});
  } else {
    f(F16{});
  }
}
// Calls f(integral_constant) with the tile width for a head.
template <class F>
void for_tensor_core_width(int64_t width, F&& f) {
  switch (tensor_core_width(width)) {
    case 64: return f(std::integral_constant<int, 64>{});
    case 80: return f(std::integral_constant<int, 80>{});
    case 96: return f(std::integral_constant<int, 96>{});
    default: return f(std::integral_constant<int, 128>{});
  }
}

// 16-byte chunks that a thread has in flight. For wide heads, the sums leave too few registers for
// more addresses.
template <int kWidth>
inline constexpr int kChunksTogether = kWidth > 96 ? 1 : 4;

// Fetches rows first to first + kRows - 1; rows from `end` on and columns from `width` on are zero.
// The data is valid once every thread has waited for its copies and the block has synchronized.
template <int kRows, int kWidth, int kThreadCount = kTileThreads, template <class> class Rows,
          class T>
__device__ void fetch_tile(const Rows<T>& rows, int first, int end, int width, T* tile) {
  constexpr int N = kChunk<T>, kChunks = kWidth / N;
  if (rows.whole) {
#pragma unroll(kChunksTogether<kWidth>)
    for (int c = static_cast<int>(threadIdx.x); c < kRows * kChunks; c += kThreadCount) {
      const int i = c / kChunks, d = c % kChunks * N;
      const bool there = first + i < end && d < width;
      const T* from = there ? rows.row(first + i) + d : rows.data;
      copy_later<kVectorBytes>(tile + i * strip_pitch(kWidth) + d, from, there);
    }
  } else {
#pragma unroll(kChunksTogether<kWidth>)
    for (int c = static_cast<int>(threadIdx.x); c < kRows * kWidth; c += kThreadCount) {
      const int i = c / kWidth, d = c % kWidth;
      const bool there = first + i < end && d < width;
      tile[i * strip_pitch(kWidth) + d] = there ? rows.row(first + i)[d] : from_float<T>(0.0f);
    }
  }
}

// s[i][...] = a b^T for strip i: rows of a from 16 i on, kColumns rows of b.
template <int kWidth, class T, int kStrips, int kBlocks>
__device__ void strip_products(const T* a, const T* b, float (&s)[kStrips][kBlocks][4]) {
  constexpr int kPitch = strip_pitch(kWidth);
  const int lane = lane_of_warp();
  const T* a_row = a + lane % 16 * kPitch + lane / 16 * 8;
  const T* b_row = b + (lane % 8 + lane / 16 * 8) * kPitch + lane / 8 % 2 * 8;
#pragma unroll
  for (int i = 0; i < kStrips; ++i) {
#pragma unroll
    for (int j = 0; j < kBlocks; ++j)
      for (int n = 0; n < 4; ++n) s[i][j][n] = 0;
  }
#pragma unroll
  for (int d = 0; d < kWidth; d += 16) {
    Matrices x[kStrips];
#pragma unroll
    for (int i = 0; i < kStrips; ++i) x[i] = load_matrices(a_row + i * kStripRows * kPitch + d);
#pragma unroll
    for (int j = 0; j < kBlocks; j += 2) {
      const Matrices y = load_matrices(b_row + j * 8 * kPitch + d);
#pragma unroll
      for (int i = 0; i < kStrips; ++i) {
        multiply_add<T>(x[i], y.at[0], y.at[1], s[i][j]);
        multiply_add<T>(x[i], y.at[2], y.at[3], s[i][j + 1]);
      }
    }
  }
}

template <class T>
__device__ uint32_t pack(float low, float high) {
  const Vector<T, 2> pair{{from_float<T>(low), from_float<T>(high)}};
  uint32_t word;
  std::memcpy(&word, &pair, sizeof(word));
  return word;
}

// out[i][...] += p[i] v for strip i, with p rounded. Columns of p correspond to rows of v, which
// has kWidth columns.
template <int kWidth, class T, int kStrips, int kBlocks>
__device__ void add_strips(const float (&p)[kStrips][kBlocks][4], const T* v,
                           float (&out)[kStrips][kWidth / 8][4]) {
  constexpr int kPitch = strip_pitch(kWidth);
  const int lane = lane_of_warp();
  const T* v_row = v + lane % 16 * kPitch + lane / 16 * 8;
#pragma unroll
  for (int j = 0; j < kBlocks; j += 2) {
    Matrices x[kStrips];
#pragma unroll
    for (int i = 0; i < kStrips; ++i) {
      x[i] = {{pack<T>(p[i][j][0], p[i][j][1]), pack<T>(p[i][j][2], p[i][j][3]),
               pack<T>(p[i][j + 1][0], p[i][j + 1][1]), pack<T>(p[i][j + 1][2], p[i][j + 1][3])}};
    }
#pragma unroll
    for (int d = 0; d < kWidth; d += 16) {
      const Matrices y = load_transposed(v_row + j * 8 * kPitch + d);
#pragma unroll
      for (int i = 0; i < kStrips; ++i) {
        multiply_add<T>(x[i], y.at[0], y.at[1], out[i][d / 8]);
        multiply_add<T>(x[i], y.at[2], y.at[3], out[i][d / 8 + 1]);
      }
    }
  }
}

template <int kBlocks>
__device__ void scale_strip(float factor, float (&x)[kBlocks][4]) {
#pragma unroll
  for (int j = 0; j < kBlocks; ++j)
    for (int n = 0; n < 4; ++n) x[j][n] *= factor;
}

// Stores rows first to first + 16 kStrips - 1 of a warp's results, those before `end`; a zero is
// +0. `staging` has room for that many rows of a tile and is private to the warp.
template <int kWidth, class T, int kStrips>
__device__ void store_strips(const HeadRows<T>& to, int first, int end, int width,
                             const float (&x)[kStrips][kWidth / 8][4], T* staging) {
  constexpr int kPitch = strip_pitch(kWidth), N = kChunk<T>, kChunks = kWidth / N;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kStrips; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      T* row = staging + (i * kStripRows + 8 * h + strip_row()) * kPitch + 2 * strip_pair();
#pragma unroll
      for (int n = 0; n < kWidth / 8; ++n) {
        const float low = x[i][n][2 * h] + 0.0f, high = x[i][n][2 * h + 1] + 0.0f;
        store_vector<T, 2>(row + 8 * n, {{from_float<T>(low), from_float<T>(high)}});
      }
    }
  }
  __syncwarp();
#pragma unroll(kChunksTogether<kWidth>)
  for (int c = lane_of_warp(); c < kStrips * kStripRows * kChunks; c += kWarp) {
    const int i = c / kChunks, d = c % kChunks * N;
    if (first + i >= end || d >= width) continue;
    const Vector<T, N> chunk = load_vector<T, N>(staging + i * kPitch + d);
    store_chunk<N>(to.row(first + i) + d, chunk, width - d, to.whole);
  }
}

// The same without rounding to the type of the tiles: writes, or adds to the previous values.
template <int kWidth, class T, int kStrips>
__device__ void store_strips_unstaged(const HeadRows<T>& to, int first, int end, int width,
                                      const float (&x)[kStrips][kWidth / 8][4], bool added) {
#pragma unroll
  for (int i = 0; i < kStrips; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = first + i * kStripRows + 8 * h + strip_row();
      if (r >= end) continue;
      T* row = to.row(r);
#pragma unroll
      for (int n = 0; n < kWidth / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int d = 8 * n + 2 * strip_pair() + e;
          if (d >= width) continue;
          const float before = added ? to_float(row[d]) : 0.0f;
          row[d] = from_float<T>(x[i][n][2 * h + e] + before);
        }
      }
    }
  }
}

// Stores a gradient's rows from the block's row `first` on.
template <int kWidth, class T, int kStrips>
__device__ void store_gradient_strips(const GradientTensor<T>& to, const HeadBlock& block,
                                      int group, int first, int end, int width,
                                      const float (&x)[kStrips][kWidth / 8][4], T* staging) {
  const int row = block.first_row + first;
  if (!to.is_wide && !to.added) {
    const HeadRows<T> rows(to.narrow, block.sample, block.key_head, group);
    return store_strips<kWidth>(rows, row, end, width, x, staging);
  }
  to.rows(block.sample, block.key_head, group, [&](const auto& rows) {
    store_strips_unstaged<kWidth>(rows, row, end, width, x, to.added);
  });
}

// Sum, or maximum, over a row of a strip, which four lanes share.
__device__ inline float strip_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}
__device__ inline float strip_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}

// Converts products to scores in units of ln 2; masked keys get -infinity.
template <int kRows, int kBlocks>
__device__ void mask_strip(float scale, bool all, const RowPlaces<kRows>& rows, int row,
                           const int* keys, float (&s)[kBlocks][4]) {
  if (all) {
#pragma unroll
    for (int j = 0; j < kBlocks; ++j)
      for (int n = 0; n < 4; ++n) s[j][n] *= scale;
    return;
  }
  const int begin[2] = {rows.begin[row], rows.begin[row + 8]};
  const int limit[2] = {rows.limit[row], rows.limit[row + 8]};
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
    const Vector<int, 2> key = load_vector<int, 2>(keys + 8 * j + 2 * strip_pair());
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const bool seen = begin[n / 2] <= key.at[n % 2] && key.at[n % 2] <= limit[n / 2];
      s[j][n] = seen ? s[j][n] * scale : -INFINITY;
    }
  }
}

// Span of a warp's rows in a tile, from row `first` on.
template <int kStrips, int kRows>
__device__ RowSpan span_of_strips(const RowPlaces<kRows>& rows, int first) {
  const int row = first + lane_of_warp() % (kStrips * kStripRows);
  RowSpan span{rows.begin[row], rows.begin[row], rows.limit[row], rows.limit[row]};
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const auto other = [&](int x) { return __shfl_xor_sync(kAllLanes, x, distance); };
    span.lowest_begin = min(span.lowest_begin, other(span.lowest_begin));
    span.highest_begin = max(span.highest_begin, other(span.highest_begin));
    span.lowest_limit = min(span.lowest_limit, other(span.lowest_limit));
    span.highest_limit = max(span.highest_limit, other(span.highest_limit));
  }
  return span;
}

// Bit 4 (column / 8) + column % 4 of a strip's row g + 8 h is 1 if the key of this lane's column is
// kept.
struct KeptKeys {
  uint32_t of[2];
  __device__ bool at(int h, int block, int e) const {
    return (of[h] >> (4 * block + 2 * (strip_pair() % 2) + e) & 1u) != 0;
  }
};

// Dropout of rows, from the tile's row `row` on (the strip's g = 0), against keys from `first_key`
// on. Without positions, four lanes share the draws of two rows.
template <int kKeys, int kRows>
__device__ KeptKeys kept_keys(const AttentionCall& call, const HeadBlock& block,
                              const RowPlaces<kRows>& rows, int row, int first_key,
                              const int* positions) {
  static_assert(kKeys <= 64);
  const AttentionDropout& dropout = call.dropout;
  const int t = strip_pair(), odd = t % 2;
  const auto key_of = [&](int r) {
    return dropout.key(block.head_of(call.places.group, block.first_row + r));
  };
  if (dropout.by_index) {
    const int mine = row + strip_row() + 8 * odd;
    const uint64_t key = key_of(mine);
    const int query = rows.position[mine];
    const auto group = static_cast<uint32_t>(first_key / 4 + t / 2);
    uint32_t word = 0;
#pragma unroll 2
    for (int j = 0; j < kKeys / 8; ++j)
      word |= dropout.keeps_group(key, block.number, query, group + 2 * j) << 4 * j;
    const uint32_t other = __shfl_xor_sync(kAllLanes, word, 1);
    return odd == 0 ? KeptKeys{{word, other}} : KeptKeys{{other, word}};
  }
  KeptKeys kept{{0, 0}};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = row + strip_row() + 8 * h;
    const uint64_t key = key_of(r);
    const int query = rows.position[r];
#pragma unroll 1
    for (int j = 0; j < kKeys / 8; ++j) {
      for (int e = 0; e < 2; ++e) {
        kept.of[h] |= dropout.keeps_position(key, block.number, query, positions[8 * j + 2 * t + e])
                      << (4 * j + 2 * odd + e);
      }
    }
  }
  return kept;
}

// The same with keys as rows: bit 4 (column / 8) + g % 4 is for the query in column 2 t + e and the
// key of row g + 8 h.
struct KeptQueries {
  uint32_t of[2][2];  // h, e
  __device__ bool at(int h, int block, int e) const {
    return (of[h][e] >> (4 * block + strip_row() % 4) & 1u) != 0;
  }
};

// Dropout of the tile's queries, whose generator keys are draws[...], against a strip's keys.
// `first_key` is the index of the first key, and key[h] the position of row g + 8 h. Without
// positions, four lanes share four draws.
template <int kQueries>
__device__ KeptQueries kept_queries(const AttentionDropout& dropout, const HeadBlock& block,
                                    const RowPlaces<kQueries>& rows, const uint64_t* draws,
                                    int first_key, const int (&key)[2]) {
  static_assert(kQueries <= 64);
  const int g = strip_row(), t = strip_pair(), place = g % 4;
  KeptQueries kept{{{0, 0}, {0, 0}}};
  if (dropout.by_index) {
    const auto group = static_cast<uint32_t>((first_key + g / 4 * 4 + place / 2 * 8) / 4);
    uint32_t word = 0;
#pragma unroll 2
    for (int j = 0; j < kQueries / 8; ++j) {
      const int query = 8 * j + 2 * t + place % 2;
      word |= dropout.keeps_group(draws[query], block.number, rows.position[query], group) << 4 * j;
    }
#pragma unroll
    for (int n = 0; n < 4; ++n)
      kept.of[n / 2][n % 2] = __shfl_sync(kAllLanes, word, (lane_of_warp() & ~(3 << 2)) | n << 2);
    return kept;
  }
#pragma unroll 1
  for (int j = 0; j < kQueries / 8; ++j) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int query = 8 * j + 2 * t + n % 2;
      kept.of[n / 2][n % 2] |=
          dropout.keeps_position(draws[query], block.number, rows.position[query], key[n / 2])
          << (4 * j + place);
    }
  }
  return kept;
}

}  // namespace megatron::kernels::cuda
