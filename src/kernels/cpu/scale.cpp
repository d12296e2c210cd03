#include "kernels/cpu/scale.h"

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/rows_ahead.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/table.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/scale.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

void scale_elements(const ScaleArgs& args, Stream& stream) {
  for_storage_type("scale", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    const Output<T> out = output_of<T>(args.out, kBlockElements, {x});
    const V factor = set(static_cast<float>(args.factor));
    for_blocks(stream, args.x.elements(), kBlockElements, [&](int64_t begin, int64_t end) {
      for_twos(begin, end, [&](int64_t i, auto n) {
        const Two v = load_two(x + i, n);
        store_two({hn::Mul(v.a, factor), hn::Mul(v.b, factor)}, out + i, n);
      });
    });
  });
}

void cap_elements(const SoftCapArgs& args, Stream& stream) {
  for_storage_type("soft_cap", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    const Output<T> out = output_of<T>(args.out, kBlockElements, {x});
    const V cap = set(static_cast<float>(args.cap)),
            inverse = set(static_cast<float>(1 / args.cap));
    const auto capped = [&](V v) { return hn::Mul(cap, tanh(hn::Mul(v, inverse))); };
    for_blocks(stream, args.x.elements(), kBlockElements, [&](int64_t begin, int64_t end) {
      for_twos(begin, end, [&](int64_t i, auto n) {
        const Two v = load_two(x + i, n);
        store_two({capped(v.a), capped(v.b)}, out + i, n);
      });
    });
  });
}

void cap_gradients(const SoftCapBackwardArgs& args, Stream& stream) {
  for_storage_type("soft_cap_backward", args.dout.dtype(), [&](auto type) {
    using T = decltype(type);
    const float* capped = args.out.data<float>();
    const T* dout = args.dout.data<T>();
    const Output<T> dx = output_of<T>(args.dx, kBlockElements, {dout});
    const V inverse = set(static_cast<float>(1 / args.cap)), one = set(1.0f);
    const auto slope = [&](V y, V d) {
      const V t = hn::Mul(y, inverse);
      return hn::Mul(d, hn::NegMulAdd(t, t, one));
    };
    for_blocks(stream, args.dout.elements(), kBlockElements, [&](int64_t begin, int64_t end) {
      for_twos(begin, end, [&](int64_t i, auto n) {
        const Two y = load_two_for<T>(capped + i, n), d = load_two(dout + i, n);
        store_two({slope(y.a, d.a), slope(y.b, d.b)}, dx + i, n);
      });
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(scale_elements);
HWY_EXPORT(cap_elements);
HWY_EXPORT(cap_gradients);

void scale(const ScaleArgs& args, Stream& stream) {
  check(args);
  HWY_DYNAMIC_DISPATCH(scale_elements)(args, stream);
}
void soft_cap(const SoftCapArgs& args, Stream& stream) {
  check(args);
  HWY_DYNAMIC_DISPATCH(cap_elements)(args, stream);
}
void soft_cap_backward(const SoftCapBackwardArgs& args, Stream& stream) {
  check(args);
  HWY_DYNAMIC_DISPATCH(cap_gradients)(args, stream);
}

}  // namespace megatron::kernels::cpu
#endif
