#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/soft_cap.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/tanh-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

void run_soft_cap(const SoftCapArgs& args, Stream& stream) {
  for_storage_type("soft_cap", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    const Output<T> out = output_of<T>(args.out, kBlockElements, {x});
    const float cap = static_cast<float>(args.cap);
    for_blocks(stream, args.x.elements(), kBlockElements, [&](int64_t begin, int64_t end) {
      for_twos(begin, end, [&](int64_t i, auto n) {
        const Two v = load_two(x + i, n);
        store_two({soft_capped(v.a, cap), soft_capped(v.b, cap)}, out + i, n);
      });
    });
  });
}

void run_soft_cap_backward(const SoftCapBackwardArgs& args, Stream& stream) {
  for_storage_type("soft_cap_backward", args.dout.dtype(), [&](auto type) {
    using T = decltype(type);
    const float* capped = args.out.data<float>();
    const T* dout = args.dout.data<T>();
    const Output<T> dx = output_of<T>(args.dx, kBlockElements, {capped, dout});
    const float cap = static_cast<float>(args.cap);
    for_blocks(stream, args.dout.elements(), kBlockElements, [&](int64_t begin, int64_t end) {
      for_twos(begin, end, [&](int64_t i, auto n) {
        const Two c = load_two_for<T>(capped + i, n), d = load_two(dout + i, n);
        store_two({hn::Mul(d.a, soft_cap_slope(c.a, cap)), hn::Mul(d.b, soft_cap_slope(c.b, cap))},
                  dx + i, n);
      });
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(run_soft_cap);
HWY_EXPORT(run_soft_cap_backward);

void soft_cap(const SoftCapArgs& args, Stream& stream) {
  check(args);
  HWY_DYNAMIC_DISPATCH(run_soft_cap)(args, stream);
}

void soft_cap_backward(const SoftCapBackwardArgs& args, Stream& stream) {
  check(args);
  HWY_DYNAMIC_DISPATCH(run_soft_cap_backward)(args, stream);
}

}  // namespace megatron::kernels::cpu
#endif
