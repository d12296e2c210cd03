// Common parts of the attention kernels: their argument and the division of its work into blocks.
#pragma once

#include <string>
#include <type_traits>

#include "kernels/cuda/attention/bias.h"
#include "kernels/cuda/attention/dropout.h"
#include "kernels/cuda/attention/places.h"
#include "kernels/cuda/attention/tiles.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/soft_cap_of_scores.h"

namespace megatron::kernels::cuda {

struct AttentionCall {
  Places places;
  AttentionDropout dropout;
  int kv_heads;
  int width, value_width;  // of queries and keys, and of values and outputs
  int key_head_count;      // over all samples
  float scale;             // of the scores in units of ln 2: exp(scale * s) = 2^(this * s)
  float plain_scale;
  SoftCap soft_cap;
  DistanceBias bias;

  // Block indices number the blocks of rows (or of keys) first, then the key heads.
  __device__ int block() const { return static_cast<int>(blockIdx.x) / key_head_count; }
  __device__ int key_head() const { return static_cast<int>(blockIdx.x) % key_head_count; }
};

// The rows, or keys, whose results a block of threads computes.
struct HeadBlock {
  __device__ HeadBlock(const AttentionCall& call, int block, int tile_rows)
      : HeadBlock(call, call.key_head(), block, tile_rows) {}
  // key: number of a key head over all samples.
  __device__ HeadBlock(const AttentionCall& call, int key, int block, int tile_rows)
      : sample(key / call.kv_heads),
        key_head(key % call.kv_heads),
        index(block),
        first_row(block * tile_rows),
        number(call.dropout.active() ? call.dropout.samples[sample] : 0) {}
  // Bias of a query row for keys; row: counted from the first of the sample.
  __device__ BiasRow bias_row(const AttentionCall& call, int row, int position) const {
    return {call.bias, head_of(call.places.group, row) * call.bias.head_stride, position};
  }
  // The query head that a row belongs to.
  __device__ int head_of(int group, int row) const { return key_head * group + row % group; }

  int sample, key_head, index, first_row;
  int64_t number;  // the sample's number in the dropout stream
};

// Index of a row's value in a [B,N,T] tensor.
__device__ inline int64_t statistics_index(const AttentionCall& call, const HeadBlock& block,
                                           int row) {
  const int group = call.places.group, query = row / group;
  const int64_t heads = int64_t{call.kv_heads} * group;
  return (block.sample * heads + block.head_of(group, row)) * call.places.queries + query;
}

template <class Args>
AttentionCall call_of(const Args& args, const AttentionBlocks& blocks, const Tensor& spans,
                      Stream& stream) {
  return {.places = places_of(args, blocks, spans, stream),
          .dropout = dropout_of(args.dropout, !args.q_positions.defined()),
          .kv_heads = static_cast<int>(args.k.size(2)),
          .width = static_cast<int>(args.q.size(3)),
          .value_width = static_cast<int>(args.v.size(3)),
          .key_head_count = static_cast<int>(args.q.size(0) * args.k.size(2)),
          .scale = static_cast<float>(args.scale * kLog2e),
          .plain_scale = static_cast<float>(args.scale),
          .soft_cap = SoftCap::of(args.soft_cap, args.scale),
          .bias = DistanceBias::of(args.bias)};
}

// Calls f(integral_constant) with the padded head width.
template <class F>
void for_width(int width, F&& f) {
  if (width == 64) {
    f(std::integral_constant<int, 64>{});
  } else if (width == 128) {
    f(std::integral_constant<int, 128>{});
  } else {
    f(std::integral_constant<int, 256>{});
  }
}

// Calls f(T{}, integral_constant) with the type and padded width for the kernels without tensor
// cores, which bf16 and f16 only use for wide heads.
template <class Args, class F>
void for_tiles(const char* kernel, const Args& args, F&& f) {
  for_storage_type(kernel, args.q.dtype(), [&](auto type) {
    for_width(tile_width(head_width(args)), [&](auto width) {
      if constexpr (sizeof(type) == sizeof(float) || width > kTensorCoreWidth) f(type, width);
    });
  });
}

// Launches `blocks` blocks of threads per key head, with Tiles in shared memory.
template <class Tiles, class Work>
void launch_tiles(const char* name, void (*kernel)(Work), const Work& work, int64_t blocks,
                  Stream& stream) {
  const int64_t all = blocks * work.call.key_head_count;
  if (all == 0) return;
  if constexpr (sizeof(Tiles) > kSharedEverywhere)
    check_shared_memory(name + std::string(" in fp32, or with heads wider than 128,"),
                        sizeof(Tiles), "--bf16 or --fp16 and heads of up to 128, or --device cpu");
  allow_dynamic_shared(kernel, sizeof(Tiles));
  launch(name, kernel,
         Grid{.blocks = dim3(static_cast<unsigned>(all)),
              .threads = dim3(kTileThreads),
              .dynamic_shared = sizeof(Tiles)},
         stream, work);
}

}  // namespace megatron::kernels::cuda
