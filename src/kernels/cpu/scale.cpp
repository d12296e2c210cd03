#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/scale.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

void run_scale(const ScaleArgs& args, Stream& stream) {
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

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(run_scale);

void scale(const ScaleArgs& args, Stream& stream) {
  check(args);
  HWY_DYNAMIC_DISPATCH(run_scale)(args, stream);
}

}  // namespace megatron::kernels::cpu
#endif
