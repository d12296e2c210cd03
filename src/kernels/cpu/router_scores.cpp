#include "kernels/cpu/router_scores.h"

#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/router_scores.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

// As softmax_row, but without the logarithm: returns the sum of exponentials, and the maximum in
// `most`.
float softmax_of_floats(const float* x, int64_t n, float* p, float* most) {
  const V lowest = set(-std::numeric_limits<float>::infinity());
  V largest = lowest;
  for_vectors(0, n, [&](int64_t i, auto part) {
    largest = hn::Max(largest, keep_or(load(x + i, part), lowest, part));
  });
  *most = hn::GetLane(hn::MaxOfLanes(kFloats, largest));
  const V shift = set(*most);
  const float sum = sum_of(n, [&](int64_t i, auto part) {
    const V e = exp(hn::Sub(load(x + i, part), shift));
    store(e, p + i, part);
    return e;
  });
  const V divisor = set(sum);
  for_vectors(
      0, n, [&](int64_t i, auto part) { store(hn::Div(load(p + i, part), divisor), p + i, part); });
  return sum;
}

void sigmoid_of_floats(const float* x, int64_t n, float* s) {
  const V one = set(1.0f);
  for_vectors(0, n, [&](int64_t i, auto part) {
    store(hn::Div(one, hn::Add(one, exp(hn::Neg(load(x + i, part))))), s + i, part);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(softmax_of_floats);
HWY_EXPORT(sigmoid_of_floats);

float softmax_row(const float* x, int64_t n, float* p) {
  float most = 0;
  const float sum = HWY_DYNAMIC_DISPATCH(softmax_of_floats)(x, n, p, &most);
  return most + std::log(sum);
}

double softmax_row(const double* x, int64_t n, double* p) {
  const double most = *std::max_element(x, x + n);
  double sum = 0;
  for (int64_t e = 0; e < n; ++e) sum += p[e] = std::exp(x[e] - most);
  for (int64_t e = 0; e < n; ++e) p[e] /= sum;
  return most + std::log(sum);
}

void score_row(RouterScore kind, const float* x, int64_t n, float* s) {
  if (kind == RouterScore::sigmoid) return HWY_DYNAMIC_DISPATCH(sigmoid_of_floats)(x, n, s);
  for (int64_t e = 0; e < n; ++e) s[e] = std::sqrt(softplus_of(x[e]));
}

void score_row(RouterScore kind, const double* x, int64_t n, double* s) {
  const bool sigmoid = kind == RouterScore::sigmoid;
  for (int64_t e = 0; e < n; ++e) s[e] = sigmoid ? sigmoid_of(x[e]) : std::sqrt(softplus_of(x[e]));
}

}  // namespace megatron::kernels::cpu
#endif
