#pragma once

#include <cmath>
#include <numbers>

namespace megatron::kernels::reference {

template <class C>
struct ValueAndSlope {
  C value, slope;
};

template <class C>
ValueAndSlope<C> gelu_tanh(C x) {
  const C c = std::sqrt(2 / std::numbers::pi_v<C>), cubic = static_cast<C>(0.044715);
  const C t = std::tanh(c * (x + cubic * x * x * x)), half = static_cast<C>(0.5);
  return {half * x * (1 + t),
          half * (1 + t) + half * x * (1 - t * t) * c * (1 + 3 * cubic * x * x)};
}

}  // namespace megatron::kernels::reference
