// Functions of a token's logits that route.cpp and router_loss.cpp share.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/route.h"

namespace megatron::kernels::cpu {

template <class C>
inline constexpr C kMinRouterSum = static_cast<C>(1e-20);

template <class C>
C sigmoid_of(C x) {
  return 1 / (1 + std::exp(-x));
}
template <class C>
C softplus_of(C x) {
  return std::max<C>(x, 0) + std::log1p(std::exp(-std::abs(x)));
}

// s = sigmoid or sqrt_softplus of n values.
void score_row(RouterScore kind, const float* x, int64_t n, float* s);
void score_row(RouterScore kind, const double* x, int64_t n, double* s);
// Derivative of the score s by its logit x.
template <class C>
C score_slope(RouterScore kind, C x, C s) {
  return kind == RouterScore::sigmoid ? s * (1 - s) : sigmoid_of(x) / (2 * s);
}

// p = softmax of n values; p may be x. Returns the log of the sum of exponentials.
float softmax_row(const float* x, int64_t n, float* p);
double softmax_row(const double* x, int64_t n, double* p);

// Gradient dx of a softmax from its p and dp.
template <class C>
void softmax_row_gradient(const C* p, const C* dp, int64_t n, C* dx) {
  C dot = 0;
  for (int64_t e = 0; e < n; ++e) dot += p[e] * dp[e];
  for (int64_t e = 0; e < n; ++e) dx[e] = p[e] * (dp[e] - dot);
}

// Gradient dw of w / (sum of w + the minimum sum); dout may be dw.
template <class C>
void normalised_row_gradient(const C* w, const C* dout, int64_t n, C* dw) {
  C sum = kMinRouterSum<C>, dot = 0;
  for (int64_t j = 0; j < n; ++j) sum += w[j];
  for (int64_t j = 0; j < n; ++j) dot += dout[j] * w[j] / sum;
  for (int64_t j = 0; j < n; ++j) dw[j] = (dout[j] - dot) / sum;
}

// Maps values to integers of the same order. NaN counts as -infinity, and both zeros are equal.
inline int32_t order_of(float value) {
  if (std::isnan(value)) value = -std::numeric_limits<float>::infinity();
  const auto bits = std::bit_cast<int32_t>(value + 0.0f);
  return bits < 0 ? bits ^ std::numeric_limits<int32_t>::max() : bits;
}
inline int64_t order_of(double value) {
  if (std::isnan(value)) value = -std::numeric_limits<double>::infinity();
  const auto bits = std::bit_cast<int64_t>(value + 0.0);
  return bits < 0 ? bits ^ std::numeric_limits<int64_t>::max() : bits;
}

// Finds the k highest of n values, k at most n. Makes k passes, which the compiler vectorises: no
// branch depends on the values.
template <class C>
class Highest {
 public:
  explicit Highest(int64_t most) : order_(static_cast<size_t>(most)) {}

  // Writes their indices in descending order of the values; among equal values, lower indices come
  // first. NaN is the lowest value.
  void find(const C* values, int64_t n, int64_t k, int32_t* indices) {
    Order* order = order_.data();
    for (int64_t e = 0; e < n; ++e) order[e] = order_of(values[e]);
    for (int64_t j = 0; j < k; ++j) {
      Order most = kTaken;
      for (int64_t e = 0; e < n; ++e) most = std::max(most, order[e]);
      int64_t e = 0;
      while (order[e] != most) ++e;
      order[e] = kTaken;
      indices[j] = static_cast<int32_t>(e);
    }
  }

 private:
  using Order = decltype(order_of(C()));
  static constexpr Order kTaken = std::numeric_limits<Order>::min();  // below every value
  std::vector<Order> order_;
};

}  // namespace megatron::kernels::cpu
