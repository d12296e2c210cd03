// Sigmoid and silu in vectors, included once per instruction set, as simd-inl.h is.
#if defined(MEGATRON_KERNELS_CPU_SILU_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGATRON_KERNELS_CPU_SILU_INL_H
#undef MEGATRON_KERNELS_CPU_SILU_INL_H
#else
#define MEGATRON_KERNELS_CPU_SILU_INL_H
#endif

#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

// Value and derivative of an activation at x.
struct Slope {
  Lanes value, derivative;
};

// e^(y / kUnit<T>) for results that are stored as T; bf16 uses powers of 2.
template <class T>
inline constexpr float kUnit = sizeof(T) == sizeof(bf16) ? 1.44269504f : 1.0f;
template <class T>
HWY_INLINE Lanes power(Lanes y) {
  return sizeof(T) == sizeof(bf16) ? exp2_for_bf16(y.v) : exp(y.v);
}
template <class T>
HWY_INLINE Lanes sigmoid_of_negative(Lanes y) {
  return 1.0f / (1.0f + power<T>(y));
}
template <class T>
HWY_INLINE Lanes times_sigmoid_of_negative(Lanes x, Lanes y) {
  return x / (1.0f + power<T>(y));
}

// x sigmoid(x).
template <class T>
struct Silu {
  static Lanes minus(Lanes x) { return x * -kUnit<T>; }
  static Lanes value(Lanes x) { return times_sigmoid_of_negative<T>(x, minus(x)); }
  static Slope slope(Lanes x) {
    const Lanes s = sigmoid_of_negative<T>(minus(x)), xs = x * s;
    return {xs, fma(xs, 1.0f - s, s)};
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif
