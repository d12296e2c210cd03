// Determines which keys a query sees, and which blocks of keys no query of a block sees.
#pragma once

#include <cuda_runtime.h>

#include <climits>
#include <cstdint>

#include "device/stream.h"
#include "kernels/cuda_scratch/attention.h"

namespace megatron::kernels::cuda {

// Position of a key that no query sees: those after the last readable key. Queries without an
// upper bound see every key below it.
inline constexpr int kNever = INT_MAX;

// For the queries of a block of rows: the lowest and highest begin, the first position that a query
// sees, and the lowest and highest limit, the last one.
struct alignas(16) RowSpan {
  int lowest_begin, highest_begin, lowest_limit, highest_limit;
};
// Lowest and highest position of a block of keys.
struct alignas(8) KeySpan {
  int lowest, highest;
};

__device__ inline bool meet(const RowSpan& rows, const KeySpan& keys) {
  return keys.lowest <= rows.highest_limit && keys.highest >= rows.lowest_begin;
}
__device__ inline bool all_seen(const RowSpan& rows, const KeySpan& keys) {
  return keys.highest <= rows.lowest_limit && keys.lowest >= rows.highest_begin;
}

// The positions of a call. Row r of a key head belongs to query r / group.
struct Places {
  int queries, keys, group;
  int row_tile, key_tile, row_blocks, key_blocks;
  int window, chunk;  // 0: none
  bool causal;
  // Null: as in AttentionArgs.
  const int32_t *q_positions, *k_positions, *window_start, *window_end;
  // [samples, row_blocks], [samples, key_blocks] and [samples]; null if they follow from indices.
  RowSpan* row_spans;
  KeySpan* key_spans;
  int32_t* key_ends;

  __device__ int rows() const { return queries * group; }
  __device__ int position(int sample, int query) const {
    return q_positions == nullptr ? query : q_positions[int64_t{sample} * queries + query];
  }
  __device__ int limit(int sample, int query) const {
    if (causal) return position(sample, query);
    int highest = kNever - 1;
    if (window_end != nullptr)
      highest = min(highest, window_end[int64_t{sample} * queries + query]);
    if (window > 0) {
      const int64_t last = int64_t{position(sample, query)} + window - 1;
      if (last < highest) highest = static_cast<int>(last);
    }
    return highest;
  }
  __device__ int begin(int sample, int query) const {
    int lowest =
        window_start == nullptr ? INT_MIN : window_start[int64_t{sample} * queries + query];
    if (window > 0) lowest = max(lowest, position(sample, query) - window + 1);
    if (chunk > 0) {
      const int place = position(sample, query);
      lowest = max(lowest, place - place % chunk);
    }
    return lowest;
  }
  __device__ int key(int sample, int index) const {
    return k_positions == nullptr ? index : k_positions[int64_t{sample} * keys + index];
  }

  __device__ int first_query(int block) const { return block * row_tile / group; }
  __device__ int last_query(int block) const {
    return (min((block + 1) * row_tile, rows()) - 1) / group;
  }
  __device__ RowSpan row_span(int sample, int block) const {
    if (row_spans != nullptr) return row_spans[int64_t{sample} * row_blocks + block];
    const int first = first_query(block), last = last_query(block);
    return {begin(sample, first), begin(sample, last), limit(sample, first), limit(sample, last)};
  }
  __device__ KeySpan key_span(int sample, int block) const {
    if (key_spans != nullptr) return key_spans[int64_t{sample} * key_blocks + block];
    return {block * key_tile, min((block + 1) * key_tile, keys) - 1};
  }
  // Key blocks before first_keys() have no visible keys for the rows; row blocks before
  // first_rows(), and those for which past() is true, do not see the keys.
  __device__ int first_keys(const RowSpan& rows) const {
    return key_spans == nullptr ? max(0, rows.lowest_begin) / key_tile : 0;
  }
  __device__ int first_rows(const KeySpan& of_keys) const {
    if (row_spans != nullptr || (!causal && window == 0)) return 0;
    const int first = causal ? of_keys.lowest : max(0, of_keys.lowest - window + 1);
    return static_cast<int>(int64_t{first} * group / row_tile);
  }
  __device__ bool past(const RowSpan& rows, const KeySpan& of_keys) const {
    return row_spans == nullptr && rows.lowest_begin > of_keys.highest;
  }
  // Number of the sample's keys up to the last readable one.
  __device__ int key_end(int sample) const {
    if (key_ends != nullptr) return key_ends[sample];
    return min(limit(sample, queries - 1) + 1, keys);
  }
};

// Index of the first block of keys from `index` on that the rows may see; places.key_blocks if
// there is none.
__device__ inline int next_keys(const Places& places, int sample, const RowSpan& rows, int index,
                                int key_end) {
  for (; index * places.key_tile < key_end; ++index)
    if (meet(rows, places.key_span(sample, index))) return index;
  return places.key_blocks;
}

// Positions of a call with these blocks. Queues kernels that fill `spans` (AttentionScratch);
// undefined spans follow from indices.
template <class Args>
Places places_of(const Args& args, const AttentionBlocks& blocks, const Tensor& spans,
                 Stream& stream);

// Positions of a tile's query rows. Rows beyond the last see nothing.
template <int kRows>
struct RowPlaces {
  int begin[kRows], limit[kRows], position[kRows];

  // Called by all threads of a block.
  __device__ void fill(const Places& places, int sample, int first) {
    for (int i = threadIdx.x; i < kRows; i += blockDim.x) {
      const int row = first + i, query = row / places.group;
      const bool there = row < places.rows();
      begin[i] = there ? places.begin(sample, query) : kNever;
      limit[i] = there ? places.limit(sample, query) : INT_MIN;
      position[i] = there ? places.position(sample, query) : 0;
    }
  }
  __device__ bool sees(int row, int key) const { return begin[row] <= key && key <= limit[row]; }
};

// Positions of a tile's keys, kNever for those that are not readable. Called by all threads.
template <int kKeys>
__device__ void fill_keys(const Places& places, int sample, int first, int end,
                          int (&positions)[kKeys]) {
  for (int j = threadIdx.x; j < kKeys; j += blockDim.x)
    positions[j] = first + j < end ? places.key(sample, first + j) : kNever;
}

}  // namespace megatron::kernels::cuda
