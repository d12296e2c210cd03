// The bias by distance of attention's scores (kernels/attention.h), and its gradient.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/attention.h"
#include "kernels/cuda/attention/places.h"
#include "kernels/cuda/attention/tiles.h"

namespace megatron::kernels::cuda {

inline constexpr double kLog2e = 1.44269504088896340736;

struct DistanceBias {
  const float* values = nullptr;  // null: none
  int radius = 0, distance_stride = 0, head_stride = 0;

  // Throws Error if 32 bits cannot index the values.
  static DistanceBias of(const Tensor& bias);
};

// The bias of one query: `head` is the index of its head's first value.
struct BiasRow {
  __device__ BiasRow(const DistanceBias& of, int of_head, int position)
      : bias(of), head(of_head), lowest(position - of.radius) {}
  // In units of ln 2.
  __device__ float at(int key) const {
    const int row = max(min(key, lowest + 2 * bias.radius) - lowest, 0);
    return bias.values[head + row * bias.distance_stride] * static_cast<float>(kLog2e);
  }
  const DistanceBias& bias;
  int head;
  int lowest;  // position of the keys at distance -R
};

// Calls f(bool_constant): whether the call has a bias. Kernels without one have no code for it.
template <class Args, class F>
void for_bias(const Args& args, F&& f) {
  args.bias.defined() ? f(std::true_type{}) : f(std::false_type{});
}

// Gradient of the bias, summed separately by each block of query rows: f32 [samples * key heads,
// row blocks, heads of a key head, slots]. The slots of a head are kTileThreads sums of lower
// distances than -R, the distances -R to R, and as many sums of higher ones. Thread t owns the
// distances whose remainder by kTileThreads is t, so that the order of sums is fixed.
struct BiasSums {
  float* sums = nullptr;  // null: not requested
  int radius = 0;

  __device__ bool requested() const { return sums != nullptr; }
  __device__ int slots() const { return 2 * radius + 1 + 2 * kTileThreads; }
  // Sums of the heads of a block of rows. block: its number among all blocks.
  __device__ float* of_block(int64_t block, int group) const {
    return sums + block * group * slots();
  }
  __device__ int slot(int distance) const {
    if (distance < -radius) return static_cast<int>(threadIdx.x);
    if (distance > radius) return kTileThreads + 2 * radius + 1 + static_cast<int>(threadIdx.x);
    return kTileThreads + radius + distance;
  }
};

// The remainder of a distance by kTileThreads, never negative.
__device__ inline int owner_of(int distance) {
  static_assert((kTileThreads & (kTileThreads - 1)) == 0);
  return distance & (kTileThreads - 1);
}

// Sets the sums that this thread owns to 0.
__device__ inline void clear_bias_sums(const BiasSums& sums, float* to, int group) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int head = 0; head < group; ++head) {
    float* of_head = to + int64_t{head} * sums.slots();
    of_head[sums.slot(-sums.radius - 1)] = of_head[sums.slot(sums.radius + 1)] = 0;
    for (int d = -sums.radius + owner_of(thread + sums.radius); d <= sums.radius; d += kTileThreads)
      of_head[sums.slot(d)] = 0;
  }
}

// Adds gradients of scores, [kRows][padded(kKeys)], to the sums of a block whose first row is
// first_row. Called by all threads, after they have written and synchronized.
template <int kRows, int kKeys>
__device__ void add_bias_gradient(const BiasSums& sums, float* to, const Places& places,
                                  const RowPlaces<kRows>& rows, int first_row, const int* keys,
                                  const float* gradients) {
  constexpr int kPitch = padded(kKeys);
  const int thread = static_cast<int>(threadIdx.x), group = places.group;
  if (places.k_positions != nullptr) {
    for (int r = 0; r < kRows; ++r) {
      float* of_head = to + int64_t{(first_row + r) % group} * sums.slots();
      for (int j = 0; j < kKeys; ++j) {
        if (keys[j] == kNever) continue;
        const int distance = keys[j] - rows.position[r];
        if (owner_of(distance) == thread) of_head[sums.slot(distance)] += gradients[r * kPitch + j];
      }
    }
    return;
  }
  // Consecutive positions: the tile has at most one distance per thread.
  static_assert(kRows + kKeys - 1 <= kTileThreads);
  const int last_row = min(first_row + kRows, places.rows()) - 1;
  const int lowest = keys[0] - last_row / group;
  const int distance = lowest + owner_of(thread - lowest);
  if (distance > keys[0] + kKeys - 1 - first_row / group) return;
  for (int head = 0; head < group; ++head) {
    float sum = 0;
    for (int row = first_row + (head + group - first_row % group) % group; row <= last_row;
         row += group) {
      const int j = distance + row / group - keys[0];
      if (0 <= j && j < kKeys) sum += gradients[(row - first_row) * kPitch + j];
    }
    to[int64_t{head} * sums.slots() + sums.slot(distance)] += sum;
  }
}

// Writes the bias gradient of `args`: the total of `sums` (AttentionBackwardScratch) over all
// blocks.
void store_bias_gradient(const AttentionBackwardArgs& args, const Tensor& sums, Stream& stream);

}  // namespace megatron::kernels::cuda
