// What route.cpp and router_loss.cpp compute of a token's logits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/route.h"

namespace megatron::kernels::cpu {

template <class C>
inline constexpr C kLeastRouterSum = static_cast<C>(1e-20);

template <class C>
C sigmoid_of(C x) {
  return 1 / (1 + std::exp(-x));
}
template <class C>
C softplus_of(C x) {
  return std::max<C>(x, 0) + std::log1p(std::exp(-std::abs(x)));
}

// Of sigmoid and sqrt_softplus; and the slope where the score is s.
template <class C>
C score_of(RouterScore kind, C x) {
  return kind == RouterScore::sigmoid ? sigmoid_of(x) : std::sqrt(softplus_of(x));
}
template <class C>
C score_slope(RouterScore kind, C x, C s) {
  return kind == RouterScore::sigmoid ? s * (1 - s) : sigmoid_of(x) / (2 * s);
}

// p = softmax of n values, which p may be; gives their log sum exp.
template <class C>
C softmax_row(const C* x, int64_t n, C* p) {
  const C most = *std::max_element(x, x + n);
  C sum = 0;
  for (int64_t e = 0; e < n; ++e) sum += p[e] = std::exp(x[e] - most);
  for (int64_t e = 0; e < n; ++e) p[e] /= sum;
  return most + std::log(sum);
}

// dx of softmax's p and dp.
template <class C>
void softmax_row_gradient(const C* p, const C* dp, int64_t n, C* dx) {
  C dot = 0;
  for (int64_t e = 0; e < n; ++e) dot += p[e] * dp[e];
  for (int64_t e = 0; e < n; ++e) dx[e] = p[e] * (dp[e] - dot);
}

// dw of w / (sum of w + the least sum); dout may be dw.
template <class C>
void normalised_row_gradient(const C* w, const C* dout, int64_t n, C* dw) {
  C sum = kLeastRouterSum<C>, dot = 0;
  for (int64_t j = 0; j < n; ++j) sum += w[j];
  for (int64_t j = 0; j < n; ++j) dot += dout[j] * w[j] / sum;
  for (int64_t j = 0; j < n; ++j) dw[j] = (dout[j] - dot) / sum;
}

// The indices of the k highest of n values, in descending order, of equal ones the lower first; NaN is
// the lowest. best has room for k values.
template <class C>
void find_highest(const C* values, int64_t n, int64_t k, int32_t* indices, C* best) {
  int64_t found = 0;
  for (int64_t e = 0; e < n; ++e) {
    const C value = std::isnan(values[e]) ? -std::numeric_limits<C>::infinity() : values[e];
    if (found == k && !(value > best[k - 1])) continue;
    int64_t place = found < k ? found++ : k - 1;
    for (; place > 0 && best[place - 1] < value; --place) {
      best[place] = best[place - 1];
      indices[place] = indices[place - 1];
    }
    best[place] = value;
    indices[place] = static_cast<int32_t>(e);
  }
}

}  // namespace megatron::kernels::cpu
