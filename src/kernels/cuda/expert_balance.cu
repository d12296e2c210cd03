#include <cstring>
#include <type_traits>

#include "kernels/cuda/chunk.h"
#include "kernels/cuda/dynamic_shared.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/router_rows.h"
#include "kernels/cuda/router_warps.h"
#include "kernels/cuda_scratch/scratch.h"

namespace megatron::kernels::cuda {
namespace {

constexpr double kMinLoad = 1e-8;
constexpr int kSinkhornThreads = 1024;

// counted: negative for tokens that are left out; null: none are.
__device__ bool counts(const int32_t* counted, int64_t token) {
  return counted == nullptr || counted[token] >= 0;
}
// Tokens that count, for all threads of a block.
__device__ int64_t count_of(const int32_t* counted, int64_t tokens, int* partial) {
  if (counted == nullptr) return tokens;
  int own = 0;
  for (int64_t t = threadIdx.x; t < tokens; t += blockDim.x) own += counted[t] >= 0 ? 1 : 0;
  return block_sum(own, partial);
}

template <class C>
struct Sinkhorn {
  double tolerance;
  int64_t iterations, tokens;
  int experts;
  const C* logits;
  const int32_t* counted;
  C* out;
  double *k, *c, *r;
};

// Columns that a block sums at a time, and threads per column. The threads of one column are
// `columns` apart.
struct ColumnThreads {
  int columns, threads;

  __device__ explicit ColumnThreads(int experts)
      : columns(min(experts, kSinkhornThreads)), threads(kSinkhornThreads / columns) {}
};

// Computes r, one warp per row.
template <class C>
__device__ void scale_rows_of(const Sinkhorn<C>& s, double real) {
  for (int64_t t = warp_of_row(); t < s.tokens; t += kSinkhornThreads / kWarp) {
    double sum = 0;
    for (int e = lane_of_row(); e < s.experts; e += kWarp) sum += s.c[e] * s.k[t * s.experts + e];
    sum = warp_sum(sum);
    if (lane_of_row() == 0) s.r[t] = 1 / (real * (sum + kMinLoad));
  }
}

// Computes c. Returns the sum of this thread's changes.
template <class C>
__device__ double scale_columns_of(const Sinkhorn<C>& s, double* partial) {
  const ColumnThreads cut(s.experts);
  const int thread = static_cast<int>(threadIdx.x);
  const int column = thread % cut.columns, part = thread / cut.columns;
  double change = 0;
  for (int first = 0; first < s.experts; first += cut.columns) {
    const int e = first + column;
    double sum = 0;
    if (e < s.experts && part < cut.threads)
      for (int64_t t = part; t < s.tokens; t += cut.threads) sum += s.r[t] * s.k[t * s.experts + e];
    partial[thread] = sum;
    __syncthreads();
    if (part == 0 && e < s.experts) {
      for (int p = 1; p < cut.threads; ++p) sum += partial[p * cut.columns + column];
      const double next = 1 / (s.experts * (sum + kMinLoad));
      change += std::abs(next - s.c[e]);
      s.c[e] = next;
    }
    __syncthreads();
  }
  return change;
}

// Uses a single block, so that no iteration needs the host or another block. Tokens that are left
// out have zeros in k.
template <class C>
__global__ void __launch_bounds__(kSinkhornThreads) balance_tokens(Sinkhorn<C> s) {
  __shared__ double partial[kSinkhornThreads];
  __shared__ int partial_counts[kWarp];
  const int64_t thread = threadIdx.x;
  const double real =
      static_cast<double>(max(count_of(s.counted, s.tokens, partial_counts), int64_t{1}));
  for (int64_t t = warp_of_row(); t < s.tokens; t += kSinkhornThreads / kWarp) {
    const C* row = s.logits + t * s.experts;
    C most = -INFINITY;
    for (int e = lane_of_row(); e < s.experts; e += kWarp) most = max(most, row[e]);
    most = warp_max(most);
    for (int e = lane_of_row(); e < s.experts; e += kWarp)
      s.k[t * s.experts + e] =
          counts(s.counted, t) ? std::exp(static_cast<double>(row[e]) - static_cast<double>(most))
                               : 0;
  }
  for (int64_t e = thread; e < s.experts; e += kSinkhornThreads) s.c[e] = 1;
  __syncthreads();
  for (int64_t i = 0; i < s.iterations; ++i) {
    scale_rows_of(s, real);
    __syncthreads();
    const double change = block_sum(scale_columns_of(s, partial), partial) / s.experts;
    if (!(change > s.tolerance)) break;
  }
  __syncthreads();
  for (int64_t i = thread; i < s.tokens * s.experts; i += kSinkhornThreads)
    s.out[i] = static_cast<C>(s.r[i / s.experts] * s.k[i] * s.c[i % s.experts]);
}

template <class C>
void run(const SinkhornArgs& args, Stream& stream) {
  const Tensor memory = sinkhorn_scratch(args, stream);
  const int64_t tokens = args.logits.size(0), experts = args.logits.size(1);
  if (tokens == 0) return;
  auto* k = static_cast<double*>(memory.address());
  const Sinkhorn<C> work{.tolerance = args.tolerance,
                         .iterations = args.iterations,
                         .tokens = tokens,
                         .experts = static_cast<int>(experts),
                         .logits = address_of<C>(args.logits),
                         .counted = address_of<int32_t>(args.counted),
                         .out = address_of<C>(args.out),
                         .k = k,
                         .c = k + tokens * experts,
                         .r = k + (tokens + 1) * experts};
  launch("sinkhorn", balance_tokens<C>, Grid{.blocks = dim3(1), .threads = dim3(kSinkhornThreads)},
         stream, work);
}

template <class C>
struct Thresholds {
  RouterForm form;
  int64_t tokens;
  int experts, k;
  const C *logits, *bias;
  const int32_t* counted;
  C *above, *thresholds;
};

// One warp per token, with the scores of its experts and the values that select them in shared
// memory.
template <class C>
__global__ void __launch_bounds__(kThreads) find_scores_above(Thresholds<C> work) {
  const int64_t token = token_of_warp();
  if (token >= work.tokens) return;
  const int n = work.experts;
  if (!counts(work.counted, token)) {
    for (int e = lane_of_row(); e < n; e += kWarp) work.above[e * work.tokens + token] = -INFINITY;
    return;
  }
  const C* logits = work.logits + token * n;
  C *scores = reinterpret_cast<C*>(dynamic_shared()) + warp_of_row() * 2 * n, *values = scores + n;
  const bool softmax = work.form.score == RouterScore::softmax;
  const C log_sum = work.form.softmax_first ? log_sum_exp(logits, n) : C(0);
  for (int e = lane_of_row(); e < n; e += kWarp) {
    const C x = logits[e];
    scores[e] = !softmax                  ? score_of(work.form.score, x)
                : work.form.softmax_first ? std::exp(x - log_sum)
                                          : x;
    values[e] = scores[e] + work.bias[e];
  }
  __syncwarp();
  Ranked<C> last;
  for (int j = 0; j <= work.k; ++j) last = next_highest(values, 0, n, last);
  for (int e = lane_of_row(); e < n; e += kWarp)
    work.above[e * work.tokens + token] = scores[e] - last.value;
}

template <class To, class From>
__device__ To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

template <class C>
using KeyOf = std::conditional_t<sizeof(C) == 8, uint64_t, uint32_t>;
template <class Key>
inline constexpr Key kHighestBit = Key(1) << (8 * sizeof(Key) - 1);

// Maps values to unsigned integers of the same order. NaN counts as -infinity, and both zeros are
// equal.
template <class C>
__device__ KeyOf<C> key_of(C value) {
  value = value == value ? value + C(0) : C(-INFINITY);
  const auto bits = same_bits<KeyOf<C>>(value);
  return (bits & kHighestBit<KeyOf<C>>) != 0 ? ~bits : bits | kHighestBit<KeyOf<C>>;
}
template <class C>
__device__ C value_of(KeyOf<C> key) {
  const KeyOf<C> highest = kHighestBit<KeyOf<C>>;
  return same_bits<C>(static_cast<KeyOf<C>>((key & highest) != 0 ? key ^ highest : ~key));
}

// One block per expert. Finds the key of the value at `place` bit by bit: the largest key that more
// than `place` values reach.
template <class C>
__global__ void __launch_bounds__(kThreads) find_thresholds(Thresholds<C> work) {
  __shared__ int partial[kWarp];
  using Key = KeyOf<C>;
  const C* column = work.above + blockIdx.x * work.tokens;
  const int64_t real = count_of(work.counted, work.tokens, partial),
                place = real * work.k / work.experts;
  Key found = 0;
  for (int bit = 8 * static_cast<int>(sizeof(Key)) - 1; bit >= 0; --bit) {
    const Key tried = found | (Key(1) << bit);
    int reached = 0;
    for (int64_t t = threadIdx.x; t < work.tokens; t += kThreads)
      reached += key_of(column[t]) >= tried ? 1 : 0;
    if (block_sum(reached, partial) > place) found = tried;
  }
  if (threadIdx.x == 0) work.thresholds[blockIdx.x] = real == 0 ? C(0) : value_of<C>(found);
}

template <class C>
void run(const ExpertThresholdsArgs& args, Stream& stream) {
  const Tensor above = expert_thresholds_scratch(args, stream);
  const Thresholds<C> work{.form = args.form,
                           .tokens = args.logits.size(0),
                           .experts = static_cast<int>(args.logits.size(1)),
                           .k = static_cast<int>(args.k),
                           .logits = address_of<C>(args.logits),
                           .bias = address_of<C>(args.bias),
                           .counted = address_of<int32_t>(args.counted),
                           .above = address_of<C>(above),
                           .thresholds = address_of<C>(args.thresholds)};
  const size_t of_warp = 2 * static_cast<size_t>(work.experts) * sizeof(C);
  const int warps =
      router_warps("expert_thresholds", work.experts, 0, static_cast<int64_t>(of_warp));
  const Grid tokens{.blocks = dim3(static_cast<unsigned>(ceil_div(work.tokens, warps))),
                    .threads = dim3(static_cast<unsigned>(warps * kWarp)),
                    .dynamic_shared = static_cast<size_t>(warps) * of_warp};
  launch("expert_thresholds", find_scores_above<C>, tokens, stream, work);
  const Grid experts{.blocks = dim3(static_cast<unsigned>(work.experts))};
  launch("expert_thresholds", find_thresholds<C>, experts, stream, work);
}

template <class C>
__global__ void __launch_bounds__(kThreads)
    set_bias(int64_t experts, double ema, const C* sums, C* bias) {
  const int64_t e = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const double count = static_cast<double>(sums[experts]);
  if (e >= experts || count == 0) return;
  bias[e] = static_cast<C>(ema * static_cast<double>(bias[e]) -
                           (1 - ema) * static_cast<double>(sums[e]) / count);
}

template <class C>
void run(const ThresholdBiasArgs& args, Stream& stream) {
  launch("threshold_bias", set_bias<C>, grid_for(args.bias.size(0)), stream, args.bias.size(0),
         args.ema, address_of<C>(args.sums), address_of<C>(args.bias));
}

}  // namespace

void sinkhorn(const SinkhornArgs& args, Stream& stream) {
  args.logits.dtype() == DType::f64 ? run<double>(args, stream) : run<float>(args, stream);
}

void expert_thresholds(const ExpertThresholdsArgs& args, Stream& stream) {
  args.logits.dtype() == DType::f64 ? run<double>(args, stream) : run<float>(args, stream);
}

void threshold_bias(const ThresholdBiasArgs& args, Stream& stream) {
  if (args.bias.size(0) == 0) return;
  args.bias.dtype() == DType::f64 ? run<double>(args, stream) : run<float>(args, stream);
}

}  // namespace megatron::kernels::cuda
