// Attention to latents in pages (is_latent): one key head for all query heads of a sample, whose
// first elements are also its values, so that a tile of keys in shared memory serves both products.
//
// A block of threads computes a tile of rows, the heads of one query first, for a range of keys.
// The lower bound is the time to read each latent once for all heads: 1,152 bytes per key in bf16,
// 2.4 us for 10,000 keys at 4.8 TB/s. A tile has 64 rows, whose sums of 512 values fill half of the
// registers. With 128 heads two blocks thus read each key, one of them mostly from the L2 cache. 64
// rows give 121 operations per byte. Up to kFewLatentRows rows use tiles of 16, which waste less.
#pragma once

#include <cmath>

#include "kernels/cuda/attention/forward.h"

namespace megatron::kernels::cuda {

inline constexpr int kLatentKeyColumns = static_cast<int>(kLatentKey),
                     kLatentColumns = static_cast<int>(kLatentValue);

// A unit is a block of rows of one sample. One launch computes several units, from `first_unit` on,
// each over all ranges of keys.
template <class T>
struct LatentCall {
  ForwardCall<T> forward;
  float *sums, *weights;  // as in AttentionScratch; null: there is only one range
  int ranges, first_unit;

  // Block of rows of a launch's unit. The units of one sample are adjacent, so that they read its
  // keys at about the same time; its first units are the rows that see the most keys.
  __device__ HeadBlock block(int unit) const {
    const AttentionCall& call = forward.call;
    const int number = first_unit + unit, count = call.places.row_blocks;
    return {call, number / count, count - 1 - number % count, call.places.row_tile};
  }
};

// The part that a block of threads computes: a block of rows, and a range of keys.
template <class T>
struct LatentPart {
  __device__ explicit LatentPart(const LatentCall<T>& work)
      : block(work.block(static_cast<int>(blockIdx.x) / work.ranges)),
        span(work.forward.call.places.row_span(block.sample, block.index)) {
    constexpr int kRange = static_cast<int>(kLatentRange);
    const Places& places = work.forward.call.places;
    const int range = static_cast<int>(blockIdx.x) % work.ranges;
    key_end = min(places.key_end(block.sample), (range + 1) * kRange);
    first = next(places, max(places.first_keys(span), range * (kRange / places.key_tile)));
  }
  // Index of the first tile of keys from `index` on that a row may see; places.key_blocks if the
  // range has none.
  __device__ int next(const Places& places, int index) const {
    return next_keys(places, block.sample, span, index, key_end);
  }
  // True if every row sees every key of a tile.
  __device__ bool all_see(const Places& places, int index) const {
    return (index + 1) * places.key_tile <= key_end &&
           all_seen(span, places.key_span(block.sample, index));
  }

  HeadBlock block;
  RowSpan span;
  int key_end;  // end of the readable keys of the range
  int first;    // first tile of keys that a row may see
};

// Keys of a tile, all of which are in one page.
template <class T>
__device__ HeadRows<T> latent_rows(const LatentCall<T>& work, const LatentPart<T>& part,
                                   int first_key) {
  const ForwardCall<T>& f = work.forward;
  HeadRows<T> rows(f.k, 0, 0, 1);
  rows.data = KeyRows<T>(f.k, f.pages, part.block.sample, 0).row(first_key);
  return rows;
}

// Where a block stores the sums of one of its rows. row: counted from the block's first.
template <class T>
__device__ float* part_sums(const LatentCall<T>& work, int row) {
  return work.sums +
         (int64_t{blockIdx.x} * work.forward.call.places.row_tile + row) * kLatentColumns;
}
template <class T>
__device__ void store_weights(const LatentCall<T>& work, int row, float maximum, float sum) {
  float* to = work.weights + (int64_t{blockIdx.x} * work.forward.call.places.row_tile + row) * 2;
  store_vector<float, 2>(to, {{maximum, sum}});
}
// True if there are several ranges and the rows see no key of this one, which is then recorded in
// the weights. Called by all threads.
template <class T>
__device__ bool is_empty(const LatentCall<T>& work, const LatentPart<T>& part) {
  if (work.sums == nullptr || part.first < work.forward.call.places.key_blocks) return false;
  for (int i = threadIdx.x; i < work.forward.call.places.row_tile; i += blockDim.x)
    store_weights(work, i, -INFINITY, 0);
  return true;
}

inline constexpr int kMergeThreads = kLatentColumns / 4;

// Merges a row's results of all ranges in order. Ranges without visible keys change no bit: a
// single range with keys gives the bits of a launch without ranges. One block of threads per row.
template <class T>
__global__ void __launch_bounds__(kMergeThreads) merge_latents(LatentCall<T> work) {
  const ForwardCall<T>& f = work.forward;
  const Places& places = f.call.places;
  const int unit = static_cast<int>(blockIdx.x) / places.row_tile,
            i = static_cast<int>(blockIdx.x) % places.row_tile, d = 4 * threadIdx.x;
  const HeadBlock block = work.block(unit);
  const int row = block.first_row + i;
  if (row >= places.rows()) return;
  const auto at = [&](int range) {
    return (int64_t{unit} * work.ranges + range) * places.row_tile + i;
  };
  float maximum = -INFINITY;
  for (int range = 0; range < work.ranges; ++range)
    maximum = fmaxf(maximum, work.weights[2 * at(range)]);
  float sum = 0;
  Vector<float, 4> out{};
  for (int range = 0; range < work.ranges; ++range) {
    const Vector<float, 2> weights = load_vector<float, 2>(work.weights + 2 * at(range));
    if (weights.at[1] == 0) continue;
    const float fade = exp2f(weights.at[0] - maximum);
    sum = fmaf(weights.at[1], fade, sum);
    const Vector<float, 4> x = load_vector<float, 4>(work.sums + at(range) * kLatentColumns + d);
#pragma unroll
    for (int n = 0; n < 4; ++n) out.at[n] = fmaf(x.at[n], fade, out.at[n]);
  }
  const RowTotal total(maximum, sum, f.sinks, block.head_of(places.group, row), 1.0f);
  const HeadRows<T> to(f.out, block.sample, 0, places.group);
  store_four(to.row(row), to.whole, d, f.call.value_width, total.factor, out.at);
  if (threadIdx.x == 0) f.lse[statistics_index(f.call, block, row)] = total.lse;
}

// Launches `kernel` for all units, with Tiles in shared memory; each launch has as many units as
// fit the scratch memory.
template <class Tiles, class T>
void launch_latents(void (*kernel)(LatentCall<T>), const AttentionArgs& args,
                    const AttentionScratch& scratch, int threads, Stream& stream) {
  const AttentionBlocks blocks = forward_blocks(args);
  const LatentParts parts = latent_parts(args);
  LatentCall<T> work{.forward = forward_call<T>(args, blocks, scratch.spans, stream),
                     .sums = address_of<float>(scratch.sums),
                     .weights = address_of<float>(scratch.weights),
                     .ranges = static_cast<int>(parts.ranges),
                     .first_unit = 0};
  const auto grid_of = [](int64_t count, int size, size_t shared) {
    check_blocks("attention", count);
    return Grid{.blocks = dim3(static_cast<unsigned>(count)),
                .threads = dim3(static_cast<unsigned>(size)),
                .dynamic_shared = shared};
  };
  if constexpr (sizeof(Tiles) > kSharedEverywhere)
    check_shared_memory("attention to latents", sizeof(Tiles),
                        "--mla-decode plain, or --device cpu");
  allow_dynamic_shared(kernel, sizeof(Tiles));
  const int64_t units = blocks.row_blocks * args.q.size(0);
  for (int64_t first = 0; first < units; first += parts.units) {
    const int64_t count = std::min(parts.units, units - first);
    work.first_unit = static_cast<int>(first);
    launch("attention", kernel, grid_of(count * parts.ranges, threads, sizeof(Tiles)), stream,
           work);
    if (work.sums != nullptr)
      launch("attention, ranges", merge_latents<T>,
             grid_of(count * blocks.row_tile, kMergeThreads, 0), stream, work);
  }
}

// Calls of is_latent(args). In bf16 and f16 on tensor cores, with weights rounded before the sums.
void latent_attention(const AttentionArgs& args, const AttentionScratch& scratch, Stream& stream);
// The same in f32.
void latent_attention_f32(const AttentionArgs& args, const AttentionScratch& scratch,
                          Stream& stream);

}  // namespace megatron::kernels::cuda
