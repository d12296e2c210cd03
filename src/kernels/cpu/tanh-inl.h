// tanh in vectors, included once per instruction set, as simd-inl.h is.
#if defined(MEGATRON_KERNELS_CPU_TANH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGATRON_KERNELS_CPU_TANH_INL_H
#undef MEGATRON_KERNELS_CPU_TANH_INL_H
#else
#define MEGATRON_KERNELS_CPU_TANH_INL_H
#endif

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

// Within 4 ulp; NaN for NaN. Below 1/4 it uses the series, whose next term is 1e-8 of the result
// there; above, e^(-2 |x|).
HWY_INLINE V tanh(V x) {
  const V size = hn::Abs(x), xx = hn::Mul(x, x);
  V p = hn::MulAdd(xx, set(0.0218694885f), set(-0.0539682540f));
  p = hn::MulAdd(p, xx, set(0.133333333f));
  p = hn::MulAdd(p, xx, set(-0.333333333f));
  const V small = hn::MulAdd(hn::Mul(p, xx), x, x);
  const V e = exp_up_to_90(hn::Mul(size, set(-2.0f)));
  const V one = set(1.0f);
  const V large = hn::CopySign(hn::Div(hn::Sub(one, e), hn::Add(one, e)), x);
  return hn::IfThenElse(hn::Lt(size, set(0.25f)), small, large);
}

// cap * tanh(y / cap), and the derivative by y from that value.
HWY_INLINE V soft_capped(V y, float cap) {
  return hn::Mul(set(cap), tanh(hn::Mul(y, set(1 / cap))));
}
HWY_INLINE V soft_cap_slope(V capped, float cap) {
  const V t = hn::Mul(capped, set(1 / cap));
  return hn::NegMulAdd(t, t, set(1.0f));
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif
