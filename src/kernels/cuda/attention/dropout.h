// Dropout of attention tiles. Without positions, four consecutive keys share one draw of the
// generator.
#pragma once

#include "kernels/cuda/attention/places.h"
#include "kernels/cuda/attention/tiles.h"
#include "kernels/cuda/philox.h"
#include "kernels/cuda/reduce.h"

namespace megatron::kernels::cuda {

struct AttentionDropout {
  const int64_t* samples;  // null: everything is kept
  uint64_t seed, stream;
  int64_t first_head;
  uint32_t threshold;
  float factor;   // of kept elements
  bool by_index;  // positions equal indices

  __device__ bool active() const { return samples != nullptr; }
  __device__ uint64_t key(int head) const {
    const auto number = static_cast<uint64_t>(first_head + head);
    return dropout_key(seed, mix_stream(stream, number));
  }
  __device__ uint32_t keeps_position(uint64_t key, int64_t sample, int query, int position) const {
    const auto channel = static_cast<uint32_t>(position);
    const PhiloxWords words = dropout_words(key, sample, static_cast<uint32_t>(query), channel / 4);
    const uint32_t even = channel % 4 < 2 ? words.at[0] : words.at[2];
    const uint32_t odd = channel % 4 < 2 ? words.at[1] : words.at[3];
    return (channel % 2 == 0 ? even : odd) >= threshold ? 1 : 0;
  }
  // Bit n is 1 if position 4 * group + n is kept.
  __device__ uint32_t keeps_group(uint64_t key, int64_t sample, int query, uint32_t group) const {
    const PhiloxWords words = dropout_words(key, sample, static_cast<uint32_t>(query), group);
    uint32_t bits = 0;
#pragma unroll
    for (int n = 0; n < 4; ++n) bits |= static_cast<uint32_t>(words.at[n] >= threshold) << n;
    return bits;
  }
};

inline AttentionDropout dropout_of(const DropoutArgs::Mask& mask, bool by_index) {
  AttentionDropout dropout{.samples = nullptr,
                           .seed = mask.seed,
                           .stream = mask.stream,
                           .first_head = mask.first_head,
                           .threshold = dropout_threshold(mask.p),
                           .factor = 1.0f / (1.0f - mask.p),
                           .by_index = by_index};
  if (mask.p > 0) dropout.samples = static_cast<const int64_t*>(mask.rows.sample_ids.address());
  return dropout;
}

// Returns a mask of the tile's kColumns * 16 keys that a query keeps; the first key has the index
// `first`. Bit j stands for the key at across + 16 j. All lanes of a warp call this, each half-warp
// for one row.
template <int kColumns>
__device__ uint32_t keeps_keys(const AttentionDropout& dropout, uint64_t key, int64_t sample,
                               int query, int first, const int* positions) {
  uint32_t kept = 0;
  if (dropout.by_index) {
    constexpr int kGroups = kColumns * kAcross / 4;
    const auto group = static_cast<uint32_t>(first / 4 + across() % kGroups);
    const uint32_t bits = dropout.keeps_group(key, sample, query, group);
    const int half = static_cast<int>(threadIdx.x) % kWarp / kAcross * kAcross;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const uint32_t of_group =
          __shfl_sync(kAllLanes, bits, half + across() / 4 + j * (kAcross / 4));
      kept |= (of_group >> across() % 4 & 1u) << j;
    }
  } else {
    for (int j = 0; j < kColumns; ++j) {
      kept |= dropout.keeps_position(key, sample, query, positions[across() + j * kAcross]) << j;
    }
  }
  return kept;
}

// Returns a mask of a thread's keys that a query keeps: bit i stands for the key at tile_row(i).
template <int kRows>
__device__ uint32_t keeps_rows(const AttentionDropout& dropout, uint64_t key, int64_t sample,
                               int query, int first, const int* positions) {
  static_assert(kRows % 4 == 0);
  uint32_t kept = 0;
  if (dropout.by_index) {
#pragma unroll
    for (int i = 0; i < kRows; i += 4) {
      const auto group = static_cast<uint32_t>((first + tile_row<kRows>(i)) / 4);
      kept |= dropout.keeps_group(key, sample, query, group) << i;
    }
  } else {
    for (int i = 0; i < kRows; ++i)
      kept |= dropout.keeps_position(key, sample, query, positions[tile_row<kRows>(i)]) << i;
  }
  return kept;
}

}  // namespace megatron::kernels::cuda
