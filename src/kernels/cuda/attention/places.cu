#include <algorithm>

#include "kernels/cuda/attention/places.h"
#include "kernels/cuda/chunk.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"

namespace megatron::kernels::cuda {
namespace {

__device__ int warp_lowest(int x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    x = min(x, __shfl_xor_sync(kAllLanes, x, distance));
  return x;
}
__device__ int warp_highest(int x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    x = max(x, __shfl_xor_sync(kAllLanes, x, distance));
  return x;
}

// Minimum over one value per warp; every thread gets the block's result. `all` holds one value per
// warp.
__device__ int block_lowest(int x, int* all) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  if (lane == 0) all[warp] = x;
  __syncthreads();
  x = warp_lowest(lane < warps ? all[lane] : INT_MAX);
  __syncthreads();
  return x;
}
__device__ int block_highest(int x, int* all) { return ~block_lowest(~x, all); }

__device__ RowSpan span_of_rows(const Places& p, int sample, int block) {
  RowSpan span{INT_MAX, INT_MIN, INT_MAX, INT_MIN};
  const int last = p.last_query(block);
  for (int t = p.first_query(block) + static_cast<int>(threadIdx.x % kWarp); t <= last;
       t += kWarp) {
    const int begin = p.begin(sample, t), limit = p.limit(sample, t);
    span.lowest_begin = min(span.lowest_begin, begin);
    span.highest_begin = max(span.highest_begin, begin);
    span.lowest_limit = min(span.lowest_limit, limit);
    span.highest_limit = max(span.highest_limit, limit);
  }
  return {warp_lowest(span.lowest_begin), warp_highest(span.highest_begin),
          warp_lowest(span.lowest_limit), warp_highest(span.highest_limit)};
}

// One block of threads per sample, one warp per block of rows or keys.
__global__ void find_spans(Places p) {
  __shared__ int all[kWarp];
  const int sample = static_cast<int>(blockIdx.x);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  int lowest = INT_MAX, highest = INT_MIN;
  for (int block = warp; block < p.row_blocks; block += warps) {
    const RowSpan span = span_of_rows(p, sample, block);
    if (lane == 0) p.row_spans[int64_t{sample} * p.row_blocks + block] = span;
    lowest = min(lowest, span.lowest_begin);
    highest = max(highest, span.highest_limit);
  }
  lowest = block_lowest(lowest, all);
  highest = block_highest(highest, all);
  int end = 0;
  for (int block = warp; block < p.key_blocks; block += warps) {
    KeySpan span{INT_MAX, INT_MIN};
    const int stop = min((block + 1) * p.key_tile, p.keys);
    for (int j = block * p.key_tile + lane; j < stop; j += kWarp) {
      const int position = p.key(sample, j);
      span.lowest = min(span.lowest, position);
      span.highest = max(span.highest, position);
      if (lowest <= position && position <= highest) end = j + 1;
    }
    span = {warp_lowest(span.lowest), warp_highest(span.highest)};
    if (lane == 0) p.key_spans[int64_t{sample} * p.key_blocks + block] = span;
  }
  end = block_highest(warp_highest(end), all);
  if (threadIdx.x == 0) p.key_ends[sample] = end;
}

}  // namespace

template <class Args>
Places places_of(const Args& args, const AttentionBlocks& blocks, const Tensor& spans,
                 Stream& stream) {
  const int64_t queries = args.q.size(1), keys = args.keys();
  const int64_t group = args.q.size(2) / args.k.size(2), samples = args.q.size(0);
  Places places{.queries = static_cast<int>(queries),
                .keys = static_cast<int>(keys),
                .group = static_cast<int>(group),
                .row_tile = static_cast<int>(blocks.row_tile),
                .key_tile = static_cast<int>(blocks.key_tile),
                .row_blocks = static_cast<int>(blocks.row_blocks),
                .key_blocks = static_cast<int>(blocks.key_blocks),
                .window = static_cast<int>(std::min<int64_t>(args.window, kNever)),
                .chunk = static_cast<int>(std::min<int64_t>(args.chunk, kNever)),
                .causal = args.causal,
                .q_positions = address_of<int32_t>(args.q_positions),
                .k_positions = address_of<int32_t>(args.k_positions),
                .window_start = address_of<int32_t>(args.window_start),
                .window_end = address_of<int32_t>(args.window_end),
                .row_spans = nullptr,
                .key_spans = nullptr,
                .key_ends = nullptr};
  if (!spans.defined() || samples == 0) return places;
  auto* words = static_cast<int32_t*>(spans.address());
  places.row_spans = reinterpret_cast<RowSpan*>(words);
  places.key_spans = reinterpret_cast<KeySpan*>(words + samples * blocks.row_blocks * 4);
  places.key_ends = words + samples * (blocks.row_blocks * 4 + blocks.key_blocks * 2);
  constexpr int kSpanThreads = 512;
  launch("attention spans", find_spans,
         Grid{.blocks = dim3(static_cast<unsigned>(samples)), .threads = dim3(kSpanThreads)},
         stream, places);
  return places;
}

template Places places_of(const AttentionArgs&, const AttentionBlocks&, const Tensor&, Stream&);
template Places places_of(const AttentionBackwardArgs&, const AttentionBlocks&, const Tensor&,
                          Stream&);

}  // namespace megatron::kernels::cuda
