// Sorts slots by expert with a stable counting sort: counts each expert's slots per block of slots,
// turns the counts into positions, then places each block's slots in order.
#include "kernels/cuda/chunk.h"
#include "kernels/cuda/dynamic_shared.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/router_warps.h"
#include "kernels/cuda_scratch/scratch.h"

namespace megatron::kernels::cuda {
namespace {

constexpr const char* kName = "expert_rows";

struct SlotSort {
  SlotBlocks blocks;
  const int32_t* chosen;  // [slots]: chosen expert, possibly one that this rank does not hold
  int64_t first;          // first local expert
  int64_t capacity;       // 0: unlimited
  const int32_t* limits;  // [segments]: in place of a capacity that is not 0; or null
  bool padded;
  int64_t most;  // most rows
  // [blocks, experts]; add_counts replaces each by the position of the block's first slot in its
  // segment
  int32_t* counts;
  int32_t* starts;  // [segments + 1, experts]: number of an expert's rows before each segment
  int32_t *offsets, *slots, *rows;

  __device__ int experts() const { return static_cast<int>(blocks.experts); }
  // Local expert of a slot, or -1 if it is not local.
  __device__ int expert(int64_t slot) const {
    const int64_t e = chosen[slot] - first;
    return e >= 0 && e < blocks.experts ? static_cast<int>(e) : -1;
  }
  __device__ int64_t limit(int64_t segment) const {
    return limits == nullptr ? capacity : limits[segment];
  }
  __device__ int32_t kept(int32_t count, int64_t segment) const {
    if (capacity == 0 || count == 0) return count;
    return static_cast<int32_t>(min(int64_t{count}, limit(segment)));
  }
  __device__ int64_t rows_of_padded() const { return capacity * blocks.segments; }
};

// The slots that this block of threads processes.
struct SlotRange {
  int64_t segment, begin, end;

  __device__ explicit SlotRange(const SlotBlocks& blocks)
      : segment(blockIdx.x / blocks.blocks_of_segment) {
    const int64_t block = blockIdx.x - segment * blocks.blocks_of_segment;
    begin = segment * blocks.of_segment + block * SlotBlocks::kHeight;
    end = min(begin + SlotBlocks::kHeight, (segment + 1) * blocks.of_segment);
  }
};

__global__ void __launch_bounds__(kThreads) clear_slots(int32_t* slots, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) slots[i] = -1;
}

// Capacities of the tokens of each segment that have a choice. One block per segment.
__global__ void __launch_bounds__(kThreads)
    set_limits(SlotBlocks blocks, const int32_t* chosen, int64_t choices, int64_t all_experts,
               double factor, int32_t* limits) {
  __shared__ int partial[kWarp];
  const int64_t segment = blockIdx.x, tokens = blocks.of_segment / choices;
  int own = 0;
  for (int64_t t = threadIdx.x; t < tokens; t += kThreads)
    own += chosen[segment * blocks.of_segment + t * choices] >= 0 ? 1 : 0;
  const int64_t real = block_sum(own, partial);
  if (threadIdx.x == 0)
    limits[segment] = static_cast<int32_t>(capacity_rows(real, choices, all_experts, factor));
}

__global__ void __launch_bounds__(kThreads) count_slots(SlotSort sort) {
  auto* counts = reinterpret_cast<int32_t*>(dynamic_shared());
  const int experts = sort.experts();
  for (int e = threadIdx.x; e < experts; e += kThreads) counts[e] = 0;
  __syncthreads();
  const SlotRange range(sort.blocks);
  for (int64_t slot = range.begin + threadIdx.x; slot < range.end; slot += kThreads) {
    const int e = sort.expert(slot);
    if (e >= 0) atomicAdd(counts + e, 1);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += kThreads)
    sort.counts[int64_t{blockIdx.x} * experts + e] = counts[e];
}

// One thread per expert.
__global__ void __launch_bounds__(kThreads) add_counts(SlotSort sort) {
  constexpr int kUnroll = 8;
  const int64_t e = int64_t{blockIdx.x} * kThreads + threadIdx.x, experts = sort.blocks.experts;
  if (e >= experts) return;
  const int64_t blocks = sort.blocks.count, of_segment = sort.blocks.blocks_of_segment;
  int32_t start = 0, place = 0;
  for (int64_t first = 0; first < blocks; first += kUnroll) {
    int32_t counts[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      counts[u] = first + u < blocks ? sort.counts[(first + u) * experts + e] : 0;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t block = first + u;
      if (block >= blocks) continue;
      if (block % of_segment == 0) {
        start += sort.kept(place, block / of_segment - 1);
        place = 0;
        sort.starts[block / of_segment * experts + e] = start;
      }
      sort.counts[block * experts + e] = place;
      place += counts[u];
    }
  }
  sort.starts[sort.blocks.segments * experts + e] =
      start + sort.kept(place, sort.blocks.segments - 1);
}

// Runs in one warp.
__global__ void __launch_bounds__(kWarp) add_experts(SlotSort sort) {
  const int lane = static_cast<int>(threadIdx.x), experts = sort.experts();
  const int32_t* totals = sort.starts + sort.blocks.segments * experts;
  int64_t before = 0;
  if (lane == 0) sort.offsets[0] = 0;
  for (int first = 0; first < experts; first += kWarp) {
    const int e = first + lane;
    int64_t sum = e < experts ? totals[e] : 0;
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const int64_t other = __shfl_up_sync(kAllLanes, sum, distance);
      if (lane >= distance) sum += other;
    }
    const int64_t end = sort.padded ? (e + 1) * sort.rows_of_padded() : before + sum;
    if (e < experts) sort.offsets[e + 1] = static_cast<int32_t>(min(end, sort.most));
    before += __shfl_sync(kAllLanes, sum, kWarp - 1);
  }
}

// Mask of the lanes whose number equals this lane's.
__device__ unsigned lanes_with(int number) {
  unsigned lanes = 0;
  for (int lane = 0; lane < kWarp; ++lane)
    if (__shfl_sync(kAllLanes, number, lane) == number) lanes |= 1u << lane;
  return lanes;
}

// One warp per block of slots. It tracks the next position of each expert in shared memory.
__global__ void __launch_bounds__(kWarp) put_slots(SlotSort sort) {
  auto* places = reinterpret_cast<int32_t*>(dynamic_shared());
  const int lane = static_cast<int>(threadIdx.x), experts = sort.experts();
  for (int e = lane; e < experts; e += kWarp)
    places[e] = sort.counts[int64_t{blockIdx.x} * experts + e];
  __syncwarp();
  const SlotRange range(sort.blocks);
  const int32_t* starts = sort.starts + range.segment * experts;
  for (int64_t first = range.begin; first < range.end; first += kWarp) {
    const int64_t slot = first + lane;
    const int e = slot < range.end ? sort.expert(slot) : -1;
    const unsigned same = lanes_with(e);
    const int before = __popc(same & ((1u << lane) - 1));
    const int32_t place = e < 0 ? 0 : places[e] + before;
    __syncwarp();
    if (e >= 0 && before == 0) places[e] += __popc(same);
    __syncwarp();
    if (slot >= range.end) continue;
    int64_t row = -1;
    if (e >= 0 && (sort.capacity == 0 || place < sort.limit(range.segment))) {
      const int64_t begin = sort.padded ? e * sort.rows_of_padded() : sort.offsets[e];
      row = begin + starts[e] + place;
      if (row >= sort.most) row = -1;
    }
    sort.rows[slot] = static_cast<int32_t>(row);
    if (row >= 0) sort.slots[row] = static_cast<int32_t>(slot);
  }
}

// Keeps, per expert and segment, only the slots with the largest weights up to the capacity. One
// thread per slot of the list, which was sorted without a capacity.
template <class C>
__global__ void __launch_bounds__(kThreads)
    keep_largest(SlotSort all, const C* weights, int64_t capacity) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x, experts = all.blocks.experts;
  if (i >= all.offsets[experts]) return;
  const int64_t slot = all.slots[i];
  const int e = all.expert(slot);
  const int64_t segment = slot / all.blocks.of_segment;
  const int32_t* starts = all.starts + segment * experts + e;
  if (all.limits != nullptr) capacity = all.limits[segment];
  const int64_t begin = all.offsets[e] + starts[0], end = all.offsets[e] + starts[experts];
  int64_t larger = 0;
  if (end - begin > capacity) {
    const C mine = weights[slot];
    for (int64_t j = begin; j < end && larger < capacity; ++j) {
      const C other = weights[all.slots[j]];
      larger += other > mine || (other == mine && j < i) ? 1 : 0;
    }
  }
  all.rows[slot] = larger < capacity ? all.chosen[slot] : -1;
}

void queue(const SlotSort& sort, Stream& stream) {
  const int64_t blocks = sort.blocks.count, experts = sort.blocks.experts;
  const int64_t bytes = experts * static_cast<int64_t>(sizeof(int32_t));
  router_warps(kName, experts, 0, bytes);
  Grid grid{.blocks = dim3(static_cast<unsigned>(blocks)),
            .dynamic_shared = static_cast<size_t>(bytes)};
  if (blocks > 0 && experts > 0) launch(kName, count_slots, grid, stream, sort);
  if (experts > 0) launch(kName, add_counts, grid_for(experts), stream, sort);
  grid.threads = dim3(kWarp);
  launch(kName, add_experts, Grid{dim3(1), grid.threads}, stream, sort);
  if (blocks > 0) launch(kName, put_slots, grid, stream, sort);
}

void queue_largest(const ExpertRowsArgs& args, const SlotSort& all, Stream& stream) {
  queue(all, stream);
  if (all.blocks.slots == 0) return;
  const Grid grid = grid_for(all.blocks.slots);
  if (args.weights.dtype() == DType::f64) {
    launch(kName, keep_largest<double>, grid, stream, all, address_of<double>(args.weights),
           args.capacity);
  } else {
    launch(kName, keep_largest<float>, grid, stream, all, address_of<float>(args.weights),
           args.capacity);
  }
}

}  // namespace

void expert_rows(const ExpertRowsArgs& args, Stream& stream) {
  const ExpertRowsScratch scratch = expert_rows_scratch(args, stream);
  SlotSort sort{.blocks = SlotBlocks(args),
                .chosen = address_of<int32_t>(args.experts),
                .first = args.first,
                .capacity = args.capacity,
                .limits = nullptr,
                .padded = args.padded,
                .most = args.slots.size(0),
                .counts = address_of<int32_t>(scratch.counts),
                .starts = address_of<int32_t>(scratch.starts),
                .offsets = address_of<int32_t>(args.offsets),
                .slots = address_of<int32_t>(args.slots),
                .rows = address_of<int32_t>(args.rows)};
  if (scratch.limits.defined() && sort.blocks.slots > 0) {
    auto* limits = address_of<int32_t>(scratch.limits);
    launch(kName, set_limits, Grid{.blocks = dim3(static_cast<unsigned>(sort.blocks.segments))},
           stream, sort.blocks, sort.chosen, args.experts.size(1), args.all_experts, args.factor,
           limits);
    sort.limits = limits;
  }
  if (scratch.choices.defined()) {
    SlotSort all = sort;
    all.capacity = 0;
    all.padded = false;
    all.most = all.blocks.slots;
    all.offsets = address_of<int32_t>(scratch.offsets);
    all.slots = address_of<int32_t>(scratch.list);
    all.rows = address_of<int32_t>(scratch.choices);
    queue_largest(args, all, stream);
    sort.chosen = all.rows;
  }
  if (sort.most > 0) launch(kName, clear_slots, grid_for(sort.most), stream, sort.slots, sort.most);
  queue(sort, stream);
}

}  // namespace megatron::kernels::cuda
