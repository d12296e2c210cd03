#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.h"

namespace megatron::kernels::cuda {
namespace {

// One block per expert. Counts are integers, so the order does not matter.
template <class C>
__global__ void __launch_bounds__(kThreads)
    count_choices(int64_t slots, const int32_t* experts, const int32_t* rows, float beta,
                  C* counts) {
  __shared__ int partial[kWarp];
  const int expert = static_cast<int>(blockIdx.x);
  int count = 0;
  for (int64_t i = threadIdx.x; i < slots; i += kThreads)
    if (experts[i] == expert && (rows == nullptr || rows[i] >= 0)) ++count;
  count = block_sum(count, partial);
  if (threadIdx.x == 0)
    counts[expert] = static_cast<C>(count) + (beta == 0 ? C(0) : counts[expert]);
}

// One block. Counts are integers, so their sum is exact in f64.
template <class C>
__global__ void __launch_bounds__(kThreads)
    divide_by_sum(int64_t experts, const C* counts, C* shares) {
  __shared__ double partial[kWarp];
  double sum = 0;
  for (int64_t e = threadIdx.x; e < experts; e += kThreads) sum += static_cast<double>(counts[e]);
  sum = block_sum(sum, partial);
  for (int64_t e = threadIdx.x; e < experts; e += kThreads)
    shares[e] = sum == 0 ? C(0) : static_cast<C>(static_cast<double>(counts[e]) / sum);
}

// One block. Counts are integers, so their sum is exact in f64.
template <class C>
__global__ void __launch_bounds__(kThreads)
    move_bias(int64_t experts, double rate, const C* counts, C* bias) {
  __shared__ double partial[kWarp];
  double sum = 0;
  for (int64_t e = threadIdx.x; e < experts; e += kThreads) sum += static_cast<double>(counts[e]);
  const double mean = block_sum(sum, partial) / static_cast<double>(experts);
  for (int64_t e = threadIdx.x; e < experts; e += kThreads) {
    const double count = static_cast<double>(counts[e]);
    const double sign = mean > count ? 1 : mean < count ? -1 : 0;
    bias[e] = static_cast<C>(static_cast<double>(bias[e]) + rate * sign);
  }
}

Grid blocks_of(int64_t count) {
  return {.blocks = dim3(static_cast<unsigned>(count)), .threads = dim3(kThreads)};
}

template <class C>
void count_as(const ExpertCountsArgs& args, Stream& stream) {
  const Tensor& out = args.counts.out;
  launch("expert_counts", count_choices<C>, blocks_of(out.size(0)), stream, args.experts.elements(),
         static_cast<const int32_t*>(args.experts.address()),
         args.rows.defined() ? static_cast<const int32_t*>(args.rows.address()) : nullptr,
         args.counts.beta, static_cast<C*>(out.address()));
}

template <class C>
void divide_as(const ExpertSharesArgs& args, Stream& stream) {
  launch("expert_shares", divide_by_sum<C>, blocks_of(1), stream, args.counts.size(0),
         static_cast<const C*>(args.counts.address()), static_cast<C*>(args.shares.address()));
}

template <class C>
void move_as(const ExpertBiasArgs& args, Stream& stream) {
  launch("expert_bias", move_bias<C>, blocks_of(1), stream, args.bias.size(0), args.rate,
         static_cast<const C*>(args.counts.address()), static_cast<C*>(args.bias.address()));
}

}  // namespace

void expert_counts(const ExpertCountsArgs& args, Stream& stream) {
  if (args.counts.out.elements() == 0) return;
  args.counts.out.dtype() == DType::f64 ? count_as<double>(args, stream)
                                        : count_as<float>(args, stream);
}

void expert_shares(const ExpertSharesArgs& args, Stream& stream) {
  if (args.counts.elements() == 0) return;
  args.counts.dtype() == DType::f64 ? divide_as<double>(args, stream)
                                    : divide_as<float>(args, stream);
}

void expert_bias(const ExpertBiasArgs& args, Stream& stream) {
  if (args.bias.elements() == 0) return;
  args.bias.dtype() == DType::f64 ? move_as<double>(args, stream) : move_as<float>(args, stream);
}

}  // namespace megatron::kernels::cuda
