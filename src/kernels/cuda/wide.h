// Numbers of every floating type including f64, and the types they are computed in.
#pragma once

#include <type_traits>

#include "kernels/cuda/numbers.h"

namespace megatron::kernels::cuda {

template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
__device__ Wide<T> widen(T x) {
  if constexpr (std::is_same_v<T, double>) {
    return x;
  } else {
    return to_float(x);
  }
}
// Rounds to nearest, ties to even.
template <class T>
__device__ T narrow(Wide<T> x) {
  if constexpr (std::is_same_v<T, double>) {
    return x;
  } else {
    return from_float<T>(x);
  }
}

// As for_storage_type, but also accepts f64.
template <class F>
void for_floating_type(const char* kernel, DType type, F&& f) {
  if (type == DType::f64) return f(double{});
  for_storage_type(kernel, type, f);
}

}  // namespace megatron::kernels::cuda
