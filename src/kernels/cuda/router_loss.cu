#include "kernels/cuda/chunk.h"
#include "kernels/cuda/dynamic_shared.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/router_rows.h"
#include "kernels/cuda/router_warps.h"
#include "kernels/cuda_scratch/scratch.h"

namespace megatron::kernels::cuda {
namespace {

template <class C>
struct RouterSums {
  RouterScore score;
  int k, experts;
  int64_t tokens, height, blocks;  // per segment
  const C* logits;
  const int32_t* counted;  // null: all tokens count
  C* partials;

  __device__ int64_t columns() const { return 2 * int64_t{experts} + 2; }
};

// Replaces a token's logits, in shared memory, by the probabilities of its experts.
template <class C>
__device__ void make_probabilities(RouterScore kind, C* row, int experts, C log_sum) {
  const int lane = lane_of_row();
  if (kind == RouterScore::softmax) {
    for (int e = lane; e < experts; e += kWarp) row[e] = std::exp(row[e] - log_sum);
    return;
  }
  for (int e = lane; e < experts; e += kWarp) row[e] = score_of(kind, row[e]);
  const C sum = row_sum(row, experts) + static_cast<C>(kMinSum);
  for (int e = lane; e < experts; e += kWarp) row[e] /= sum;
}

__device__ inline bool is_counted(const int32_t* counted, int64_t token) {
  return counted == nullptr || counted[token] >= 0;
}

// Sums over a warp's tokens.
template <class C>
struct TokenSums {
  C square, entropy;  // entropy: this lane's part
};

// Reads a token's logits into `row` and converts them to probabilities.
template <class C>
__device__ void add_token(const RouterSums<C>& work, const C* logits, C* row, int32_t* counts,
                          TokenSums<C>& sums) {
  const int lane = lane_of_row();
  for (int e = lane; e < work.experts; e += kWarp) row[e] = logits[e];
  Ranked<C> last;
  for (int j = 0; j < work.k; ++j) {
    last = next_highest(row, 0, work.experts, last);
    if (lane == 0) atomicAdd(counts + last.place, 1);
  }
  const C log_sum = log_sum_exp(row, work.experts);
  sums.square += log_sum * log_sum;
  make_probabilities(work.score, row, work.experts, log_sum);
  for (int e = lane; e < work.experts; e += kWarp)
    if (row[e] > 0) sums.entropy -= row[e] * std::log(row[e]);
}

// Each block processes a block of a segment's tokens, each warp one token at a time. Shared memory
// holds one row per warp, one row of sums, and counts.
template <class C>
__global__ void __launch_bounds__(kThreads, 2) sum_tokens(RouterSums<C> work) {
  __shared__ TokenSums<C> of_warps[kThreads / kWarp];
  const int warp = warp_of_row(), warps = static_cast<int>(blockDim.x) / kWarp, n = work.experts;
  C *rows = reinterpret_cast<C*>(dynamic_shared()), *sums = rows + warps * n,
    *row = rows + warp * n;
  auto* counts = reinterpret_cast<int32_t*>(sums + n);
  for (int e = threadIdx.x; e < n; e += blockDim.x) {
    sums[e] = 0;
    counts[e] = 0;
  }
  __syncthreads();
  const int64_t segment = blockIdx.x / work.blocks, block = blockIdx.x - segment * work.blocks;
  const int64_t first = segment * work.tokens, begin = first + block * work.height;
  const int64_t end = min(begin + work.height, first + work.tokens);
  TokenSums<C> mine{};
  for (int64_t of_first_warp = begin; of_first_warp < end; of_first_warp += warps) {
    const int64_t token = of_first_warp + warp;
    if (token < end && is_counted(work.counted, token)) {
      add_token(work, work.logits + token * n, row, counts, mine);
    } else {
      for (int e = lane_of_row(); e < n; e += kWarp) row[e] = 0;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < n; e += blockDim.x) {
      C sum = sums[e];
      for (int w = 0; w < warps; ++w) sum += rows[w * n + e];
      sums[e] = sum;
    }
    __syncthreads();
  }
  mine.entropy = warp_sum(mine.entropy);
  if (lane_of_row() == 0) of_warps[warp] = mine;
  __syncthreads();
  C* to = work.partials + blockIdx.x * work.columns();
  for (int e = threadIdx.x; e < n; e += blockDim.x) {
    to[e] = sums[e];
    to[n + e] = static_cast<C>(counts[e]);
  }
  if (threadIdx.x > 0) return;
  for (int w = 1; w < warps; ++w) {
    mine.square += of_warps[w].square;
    mine.entropy += of_warps[w].entropy;
  }
  to[2 * n] = mine.square;
  to[2 * n + 1] = mine.entropy;
}

template <class C>
struct RouterResults {
  C *sums, *counts, *squares, *entropy;
};

// Each thread adds the blocks' sums of one column of a segment, in order.
template <class C>
__global__ void __launch_bounds__(kThreads)
    add_blocks(RouterSums<C> work, int64_t segments, RouterResults<C> to) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x, columns = work.columns();
  const int64_t segment = i / columns, column = i - segment * columns, n = work.experts;
  if (segment >= segments) return;
  const C* from = work.partials + segment * work.blocks * columns + column;
  C sum = 0;
#pragma unroll 8
  for (int64_t block = 0; block < work.blocks; ++block) sum += from[block * columns];
  if (column < n) {
    to.sums[segment * n + column] = sum;
  } else if (column < 2 * n) {
    to.counts[segment * n + column - n] = sum;
  } else {
    (column == 2 * n ? to.squares : to.entropy)[segment] = sum;
  }
}

template <class C>
struct RouterLoss {
  RouterScore score;
  double balance, z;
  int64_t tokens, of_segment;
  int experts;
  const C *logits, *counts;
  const double* weight;
  const int32_t* counted;  // null: all tokens count
  C* dlogits;
};

// One warp per token.
template <class C>
__global__ void __launch_bounds__(kThreads) differentiate_losses(RouterLoss<C> work) {
  const int64_t token = token_of_warp();
  if (token >= work.tokens || !is_counted(work.counted, token)) return;
  const int lane = lane_of_row(), n = work.experts;
  const C *row = work.logits + token * n, *counts = work.counts + token / work.of_segment * n;
  C* to = work.dlogits + token * n;
  const C balance = static_cast<C>(*work.weight * work.balance);
  const C z = static_cast<C>(*work.weight * work.z);
  const bool softmax = work.score == RouterScore::softmax;
  const C log_sum = log_sum_exp(row, n);
  C sum = 0, dot = 0;
  for (int e = lane; e < n; e += kWarp) {
    const C s = softmax ? std::exp(row[e] - log_sum) : score_of(work.score, row[e]);
    sum += s;
    dot += s * (balance * counts[e]);
  }
  // A softmax is used as it is; other scores are divided by their sum.
  sum = softmax ? C(1) : warp_sum(sum) + static_cast<C>(kMinSum);
  dot = warp_sum(dot) / sum;
  for (int e = lane; e < n; e += kWarp) {
    const C p = std::exp(row[e] - log_sum), slope = softmax ? p : slope_of(work.score, row[e]);
    to[e] += (balance * counts[e] - dot) / sum * slope + 2 * z * log_sum * p;
  }
}

template <class C>
void run(const RouterSumsArgs& args, Stream& stream) {
  const RouterBlocks blocks(args);
  const Tensor partials = router_sums_scratch(args, stream);
  const RouterSums<C> work{.score = args.score,
                           .k = static_cast<int>(args.k),
                           .experts = static_cast<int>(args.logits.size(1)),
                           .tokens = blocks.tokens,
                           .height = blocks.height,
                           .blocks = blocks.count,
                           .logits = address_of<C>(args.logits),
                           .counted = address_of<int32_t>(args.counted),
                           .partials = address_of<C>(partials)};
  if (blocks.count > 0) {
    const int64_t row = work.experts * static_cast<int64_t>(sizeof(C));
    const int64_t shared = row + work.experts * static_cast<int64_t>(sizeof(int32_t));
    const int warps = router_warps("router_sums", work.experts, shared, row);
    const Grid grid{.blocks = dim3(static_cast<unsigned>(blocks.segments * blocks.count)),
                    .threads = dim3(static_cast<unsigned>(warps * kWarp)),
                    .dynamic_shared = static_cast<size_t>(shared + warps * row)};
    launch("router_sums", sum_tokens<C>, grid, stream, work);
  }
  const RouterResults<C> results{address_of<C>(args.sums), address_of<C>(args.counts),
                                 address_of<C>(args.squares), address_of<C>(args.entropy)};
  launch("router_sums", add_blocks<C>, grid_for(blocks.segments * (2 * args.logits.size(1) + 2)),
         stream, work, blocks.segments, results);
}

template <class C>
void run(const RouterLossBackwardArgs& args, Stream& stream) {
  const int64_t tokens = args.logits.size(0);
  if (tokens == 0) return;
  const RouterLoss<C> work{.score = args.score,
                           .balance = args.balance,
                           .z = args.z,
                           .tokens = tokens,
                           .of_segment = tokens / args.counts.size(0),
                           .experts = static_cast<int>(args.logits.size(1)),
                           .logits = address_of<C>(args.logits),
                           .counts = address_of<C>(args.counts),
                           .weight = address_of<double>(args.weight),
                           .counted = address_of<int32_t>(args.counted),
                           .dlogits = address_of<C>(args.dlogits)};
  launch("router_loss_backward", differentiate_losses<C>, grid_for(tokens * kWarp), stream, work);
}

template <class Args>
void run_as(const Args& args, Stream& stream) {
  args.logits.dtype() == DType::f64 ? run<double>(args, stream) : run<float>(args, stream);
}

}  // namespace

void router_sums(const RouterSumsArgs& args, Stream& stream) { run_as(args, stream); }

void router_loss_backward(const RouterLossBackwardArgs& args, Stream& stream) {
  run_as(args, stream);
}

}  // namespace megatron::kernels::cuda
