// The logistic function and its integral.
#pragma once

#include <algorithm>
#include <cmath>

namespace megatron::post_training {

// log(1 + e^x) = -log sigmoid(-x)
inline double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }
inline double sigmoid(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}

}  // namespace megatron::post_training
