#include <algorithm>

#include "kernels/cpu/kernels.h"

namespace megatron::kernels::cpu {
namespace {

template <class C>
void count(const ExpertCountsArgs& args) {
  const Tensor& out = args.counts.out;
  const int32_t* experts = args.experts.data<int32_t>();
  const int32_t* rows = args.rows.defined() ? args.rows.data<int32_t>() : nullptr;
  C* counts = out.data<C>();
  if (args.counts.beta == 0) std::fill_n(counts, out.size(0), C{0});
  for (int64_t i = 0; i < args.experts.elements(); ++i)
    if (rows == nullptr || rows[i] >= 0) counts[experts[i]] += 1;
}

template <class C>
void divide_by_sum(const ExpertSharesArgs& args) {
  const C* counts = args.counts.data<C>();
  C* shares = args.shares.data<C>();
  double sum = 0;
  for (int64_t e = 0; e < args.counts.size(0); ++e) sum += static_cast<double>(counts[e]);
  for (int64_t e = 0; e < args.counts.size(0); ++e)
    shares[e] = sum == 0 ? C{0} : static_cast<C>(static_cast<double>(counts[e]) / sum);
}

template <class C>
void balance(const ExpertBiasArgs& args) {
  const C* counts = args.counts.data<C>();
  C* bias = args.bias.data<C>();
  const int64_t experts = args.bias.size(0);
  double sum = 0;
  for (int64_t e = 0; e < experts; ++e) sum += static_cast<double>(counts[e]);
  const double mean = sum / static_cast<double>(experts);
  for (int64_t e = 0; e < experts; ++e) {
    const auto count = static_cast<double>(counts[e]);
    const double sign = mean > count ? 1 : mean < count ? -1 : 0;
    bias[e] = static_cast<C>(static_cast<double>(bias[e]) + args.rate * sign);
  }
}

}  // namespace

void expert_counts(const ExpertCountsArgs& args, Stream&) {
  args.counts.out.dtype() == DType::f64 ? count<double>(args) : count<float>(args);
}

void expert_shares(const ExpertSharesArgs& args, Stream&) {
  args.counts.dtype() == DType::f64 ? divide_by_sum<double>(args) : divide_by_sum<float>(args);
}

void expert_bias(const ExpertBiasArgs& args, Stream&) {
  args.bias.dtype() == DType::f64 ? balance<double>(args) : balance<float>(args);
}

}  // namespace megatron::kernels::cpu
