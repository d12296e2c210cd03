#include "kernels/cuda/elements.h"
#include "kernels/cuda/gather_rows.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda_scratch/scratch.h"
#include "kernels/table.h"

namespace megatron::kernels::cuda {
namespace {

constexpr int kWarps = kThreads / kWarp;

// Token ids, and the table rows that they select.
struct Ids {
  const int32_t* ids;
  int64_t tokens, rows, first;

  // Returns -1 if the table has no such row. If the table is not a part of a larger one, that is an
  // error of the caller, since data readers check ids; the row is then skipped.
  __device__ int64_t row(int64_t token) const {
    const int64_t row = ids[token] - first;
    return row >= 0 && row < rows ? row : -1;
  }
};

// Lists of tokens by table row, for the gradient. counts[row] tokens name a row; its list ends at
// tokens + ends[row]. hits are the rows with a list, in any order, and totals the numbers of listed
// tokens and of hits. The positions of lists vary between runs, their contents do not.
struct Lists {
  int32_t *counts, *totals, *ends, *tokens, *hits;
};

__global__ void __launch_bounds__(kThreads) clear(int32_t* words, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) words[i] = 0;
}

__global__ void __launch_bounds__(kThreads) count_tokens(Ids ids, Lists lists) {
  const int64_t token = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (token >= ids.tokens) return;
  const int64_t row = ids.row(token);
  if (row >= 0) atomicAdd(lists.counts + row, 1);
}

// Allocates each row's list. A warp makes one atomic addition for all of its rows.
__global__ void __launch_bounds__(kThreads) place_lists(Lists lists, int64_t rows) {
  const int lane = threadIdx.x % kWarp;
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int32_t count = row < rows ? lists.counts[row] : 0;
  int32_t before = count;
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int32_t other = __shfl_sync(kAllLanes, before, lane - distance);
    if (lane >= distance) before += other;
  }
  const unsigned hit = __ballot_sync(kAllLanes, count > 0);
  int32_t place = 0, number = 0;
  if (lane == kWarp - 1 && hit != 0) {
    place = atomicAdd(lists.totals, before);
    number = atomicAdd(lists.totals + 1, __popc(hit));
  }
  place = __shfl_sync(kAllLanes, place, kWarp - 1);
  number = __shfl_sync(kAllLanes, number, kWarp - 1);
  if (row < rows) lists.ends[row] = place + before - count;
  if (count > 0) lists.hits[number + __popc(hit & ((1u << lane) - 1))] = static_cast<int32_t>(row);
}

// Fills the lists, each in arbitrary order.
__global__ void __launch_bounds__(kThreads) list_tokens(Ids ids, Lists lists) {
  const int64_t token = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (token >= ids.tokens) return;
  const int64_t row = ids.row(token);
  if (row >= 0) lists.tokens[atomicAdd(lists.ends + row, 1)] = static_cast<int32_t>(token);
}

// Sorts the lists in ascending order, one warp per list. Short lists count smaller tokens; for
// longer ones the warp scans all ids again.
__global__ void __launch_bounds__(kThreads) order_lists(Ids ids, Lists lists) {
  const int lane = threadIdx.x % kWarp;
  const int64_t hit = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (hit >= lists.totals[1]) return;
  const int64_t row = lists.hits[hit];
  const int32_t count = lists.counts[row];
  int32_t* list = lists.tokens + lists.ends[row] - count;
  if (count <= kWarp) {
    const int32_t mine = lane < count ? list[lane] : 0;
    int lesser = 0;
    for (int k = 0; k < count; ++k) lesser += __shfl_sync(kAllLanes, mine, k) < mine ? 1 : 0;
    if (lane < count) list[lesser] = mine;
    return;
  }
  constexpr int kUnroll = 16;
  int32_t done = 0;
  for (int64_t begin = 0; begin < ids.tokens && done < count; begin += kUnroll * kWarp) {
    bool here[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t token = begin + u * kWarp + lane;
      here[u] = token < ids.tokens && ids.row(token) == row;
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const unsigned found = __ballot_sync(kAllLanes, here[u]);
      if (here[u])
        list[done + __popc(found & ((1u << lane) - 1))] =
            static_cast<int32_t>(begin + u * kWarp + lane);
      done += __popc(found);
    }
  }
}

// Inputs of the last step of the gradient. Each lane of a warp adds kColumns<T> adjacent columns.
template <class T>
inline constexpr int kColumns = kNeighbours<T>;
template <class T>
struct Gradient {
  const T* dout;
  float* dtable;
  int64_t width, slabs;
  bool vectors, accumulate;
};

template <class T>
__device__ void add_tokens(const Gradient<T>& g, const int32_t* tokens, int count,
                           const Span& columns, float (&sum)[kColumns<T>]) {
  constexpr int kUnroll = 32 / kColumns<T>;
  for (int first = 0; first < count; first += kUnroll) {
    float values[kUnroll][kColumns<T>];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + u >= count) continue;
      const int64_t row = tokens[first + u] * g.width;
      read(g.dout, {row + columns.first, columns.count, columns.vector}, values[u]);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + u >= count) continue;
#pragma unroll
      for (int k = 0; k < kColumns<T>; ++k) sum[k] += values[u][k];
    }
  }
}

// Reads the row's previous gradient if it is accumulated.
template <class T>
__device__ void read_old(const Gradient<T>& g, int64_t row, const Span& columns,
                         float (&old)[kColumns<T>]) {
  if (!g.accumulate) return;
  read(g.dtable, {row * g.width + columns.first, columns.count, columns.vector}, old);
}
template <class T>
__device__ void put(const Gradient<T>& g, int64_t row, const Span& columns,
                    const float (&old)[kColumns<T>], float (&sum)[kColumns<T>]) {
  if (g.accumulate) {
#pragma unroll
    for (int k = 0; k < kColumns<T>; ++k) sum[k] += old[k];
  }
  write(g.dtable, {row * g.width + columns.first, columns.count, columns.vector}, sum);
}

// A row that occurs, and its list of tokens. tokens is 0 if there is none.
struct Hit {
  int32_t row, tokens, begin;
};

// Each block processes a slab of columns of kWarps hits, one per warp. A list of more than kLong
// tokens is divided into kWarps parts, one per warp, whose sums are added in order.
constexpr int kLong = 64;

template <class T>
__device__ void add_hits(const Gradient<T>& g, const Lists& lists, int64_t block) {
  constexpr int kSlab = kWarp * kColumns<T>;
  __shared__ float partial[kWarps][kSlab];
  __shared__ Hit hits[kWarps];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t group = block / g.slabs, first_hit = group * kWarps;
  if (threadIdx.x < kWarps) {
    Hit hit{};
    if (first_hit + threadIdx.x < lists.totals[1]) {
      hit.row = lists.hits[first_hit + threadIdx.x];
      hit.tokens = lists.counts[hit.row];
      hit.begin = lists.ends[hit.row] - hit.tokens;
    }
    hits[threadIdx.x] = hit;
  }
  __syncthreads();
  const int64_t column = (block - group * g.slabs) * kSlab + lane * kColumns<T>;
  const int count = left<kColumns<T>>(g.width - column);
  const Span columns{column, count, g.vectors && count == kColumns<T>};
  for (int k = 0; k < kWarps && hits[k].tokens > 0; ++k) {
    const int32_t row = hits[k].row, tokens = hits[k].tokens;
    const int32_t* list = lists.tokens + hits[k].begin;
    float sum[kColumns<T>] = {}, old[kColumns<T>] = {};
    if (warp == k) read_old(g, row, columns, old);
    if (tokens <= kLong) {
      if (warp != k) continue;
      add_tokens(g, list, tokens, columns, sum);
      put(g, row, columns, old, sum);
      continue;
    }
    const int part = (tokens + kWarps - 1) / kWarps, begin = warp * part;
    add_tokens(g, list + begin, begin < tokens ? min(part, tokens - begin) : 0, columns, sum);
#pragma unroll
    for (int c = 0; c < kColumns<T>; ++c) partial[warp][c * kWarp + lane] = sum[c];
    __syncthreads();
    if (warp == k) {
#pragma unroll
      for (int c = 0; c < kColumns<T>; ++c) {
        sum[c] = 0;
        for (int w = 0; w < kWarps; ++w) sum[c] += partial[w][c * kWarp + lane];
      }
      put(g, row, columns, old, sum);
    }
    __syncthreads();
  }
}

// The first blocks add the rows that occur. The others, if any, clear the rest of the table, one
// row per warp.
template <class T>
__global__ void __launch_bounds__(kThreads)
    add_rows(Gradient<T> g, Lists lists, int64_t hit_blocks, int64_t rows) {
  if (blockIdx.x < hit_blocks) return add_hits(g, lists, blockIdx.x);
  const int64_t row = (blockIdx.x - hit_blocks) * kWarps + threadIdx.x / kWarp;
  if (row >= rows || lists.counts[row] != 0) return;
  constexpr int kFour = kNeighbours<float>;
  const float zeros[kFour] = {};
  for (int64_t i = threadIdx.x % kWarp * kFour; i < g.width; i += kWarp * kFour) {
    const int count = left<kFour>(g.width - i);
    write(g.dtable, {row * g.width + i, count, g.vectors && count == kFour}, zeros);
  }
}

Lists lists_in(const Tensor& memory, int64_t rows, int64_t tokens) {
  Lists lists{};
  lists.counts = static_cast<int32_t*>(memory.address());
  lists.totals = lists.counts + rows;
  lists.ends = lists.totals + 2;
  lists.tokens = lists.ends + rows;
  lists.hits = lists.tokens + tokens;
  return lists;
}

template <class T>
void run_backward(const EmbeddingBackwardArgs& args, const Ids& ids, Stream& stream) {
  const auto name = "embedding_backward";
  const int64_t width = args.dout.size(1);
  constexpr int kCount = kColumns<T>;
  Gradient<T> g{.dout = static_cast<const T*>(args.dout.address()),
                .dtable = static_cast<float*>(args.dtable.out.address()),
                .width = width,
                .slabs = ceil_div(width, kWarp * kCount),
                .vectors = false,
                .accumulate = args.dtable.beta != 0};
  g.vectors = width % kCount == 0 && aligned<kCount>(g.dout) && aligned<kCount>(g.dtable);
  const Tensor memory = embedding_backward_scratch(args, stream);
  if (ids.rows == 0 || width == 0) return;
  const Lists lists = lists_in(memory, ids.rows, ids.tokens);
  const int64_t most_hits = std::min(ids.rows, ids.tokens);
  launch(name, clear, grid_for(ids.rows + 2), stream, lists.counts, ids.rows + 2);
  if (ids.tokens > 0) {
    launch(name, count_tokens, grid_for(ids.tokens), stream, ids, lists);
    launch(name, place_lists, grid_for(ids.rows), stream, lists, ids.rows);
    launch(name, list_tokens, grid_for(ids.tokens), stream, ids, lists);
    launch(name, order_lists, grid_for(most_hits * kWarp), stream, ids, lists);
  }
  const int64_t hit_blocks = ceil_div(most_hits, kWarps) * g.slabs;
  const int64_t blocks = hit_blocks + (g.accumulate ? 0 : ceil_div(ids.rows, kWarps));
  if (blocks == 0) return;
  launch(name, add_rows<T>, Grid{dim3(static_cast<unsigned>(blocks))}, stream, g, lists, hit_blocks,
         ids.rows);
}

template <class Args>
Ids ids_of(const Args& args, const Tensor& table) {
  return {static_cast<const int32_t*>(args.ids.address()), args.ids.elements(), table.size(0),
          args.first};
}

}  // namespace

void embedding(const EmbeddingArgs& args, Stream& stream) {
  const Ids ids = ids_of(args, args.table);
  gather_rows("embedding", ids, ids.tokens, args.table, args.out, stream, args.keeps);
}

// The gradient of a row that more than 64 tokens name is the sum of eight partial sums, each over
// adjacent tokens in order.
void embedding_backward(const EmbeddingBackwardArgs& args, Stream& stream) {
  for_storage_type("embedding_backward", args.dout.dtype(), [&](auto type) {
    run_backward<decltype(type)>(args, ids_of(args, args.dtable.out), stream);
  });
}

}  // namespace megatron::kernels::cuda
