// The operations that formulas (kernels/formulas-inl.h) need, for vectors of f32. Included once per
// instruction set, as simd-inl.h is.
#if defined(MEGATRON_KERNELS_CPU_LANES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGATRON_KERNELS_CPU_LANES_INL_H
#undef MEGATRON_KERNELS_CPU_LANES_INL_H
#else
#define MEGATRON_KERNELS_CPU_LANES_INL_H
#endif

#include "kernels/cpu/tanh-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

struct Lanes {
  V v;
  HWY_INLINE Lanes(V vector) : v(vector) {}
  HWY_INLINE Lanes(float value) : v(set(value)) {}
};
struct LanesMask {
  hn::Mask<Floats> m;
};

HWY_INLINE Lanes operator+(Lanes a, Lanes b) { return hn::Add(a.v, b.v); }
HWY_INLINE Lanes operator-(Lanes a, Lanes b) { return hn::Sub(a.v, b.v); }
HWY_INLINE Lanes operator*(Lanes a, Lanes b) { return hn::Mul(a.v, b.v); }
HWY_INLINE Lanes operator-(Lanes a) { return hn::Neg(a.v); }
HWY_INLINE Lanes operator/(Lanes a, Lanes b) { return hn::Div(a.v, b.v); }
HWY_INLINE LanesMask operator<(Lanes a, Lanes b) { return {hn::Lt(a.v, b.v)}; }
HWY_INLINE LanesMask operator>(Lanes a, Lanes b) { return {hn::Gt(a.v, b.v)}; }
HWY_INLINE LanesMask operator<=(Lanes a, Lanes b) { return {hn::Le(a.v, b.v)}; }
HWY_INLINE LanesMask operator!=(Lanes a, Lanes b) { return {hn::Ne(a.v, b.v)}; }
HWY_INLINE Lanes select(LanesMask condition, Lanes yes, Lanes no) {
  return hn::IfThenElse(condition.m, yes.v, no.v);
}
HWY_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) { return hn::MulAdd(a.v, b.v, c.v); }
HWY_INLINE Lanes one_less(Lanes a, Lanes b) { return hn::NegMulAdd(a.v, b.v, set(1.0f)); }
HWY_INLINE Lanes abs(Lanes x) { return hn::Abs(x.v); }
// Returns b if b is NaN.
HWY_INLINE Lanes min(Lanes a, Lanes b) { return hn::Min(a.v, b.v); }
HWY_INLINE Lanes max(Lanes a, Lanes b) { return hn::Max(a.v, b.v); }
HWY_INLINE Lanes exp(Lanes x) { return exp(x.v); }
HWY_INLINE Lanes tanh(Lanes x) { return tanh(x.v); }
HWY_INLINE Lanes sigmoid(Lanes x) { return 1.0f / (1.0f + exp(-x)); }

template <class X>
struct Pair {
  X first, second;
};

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif
