#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows_ahead.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/clip.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

// A NaN compares false and stays.
HWY_INLINE V clipped(V x, V limit) {
  const V below = hn::IfThenElse(hn::Gt(x, limit), limit, x);
  const V least = hn::Neg(limit);
  return hn::IfThenElse(hn::Lt(below, least), least, below);
}
HWY_INLINE V where_within(V x, V limit, V dout) {
  return hn::IfThenElseZero(hn::Le(hn::Abs(x), limit), dout);
}

void run_clip(const ClipArgs& args, Stream& stream) {
  for_storage_type("clip", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    const Output<T> out = output_of<T>(args.out, args.out.stride(0), {x});
    const int64_t width = args.x.size(1);
    const V limit = set(static_cast<float>(args.limit));
    for_blocks(stream, args.x.size(0), rows_per_block(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* from = x + row * args.x.stride(0);
        const Output<T> to = out + row * args.out.stride(0);
        for_twos(0, width, [&](int64_t i, auto n) {
          const Two v = load_two(from + i, n);
          store_two({clipped(v.a, limit), clipped(v.b, limit)}, to + i, n);
        });
      }
    });
  });
}

void run_clip_backward(const ClipBackwardArgs& args, Stream& stream) {
  for_storage_type("clip_backward", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    const T* dout = args.dout.data<T>();
    const Output<T> dx = output_of<T>(args.dx, args.dx.stride(0), {x, dout});
    const int64_t width = args.x.size(1);
    const V limit = set(static_cast<float>(args.limit));
    for_blocks(stream, args.x.size(0), rows_per_block(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* from = x + row * args.x.stride(0);
        const T* gradient = dout + row * args.dout.stride(0);
        const Output<T> to = dx + row * args.dx.stride(0);
        for_twos(0, width, [&](int64_t i, auto n) {
          ask_for(from + i + kElementsAhead<T>, kTwoBytes<T>);
          ask_for(gradient + i + kElementsAhead<T>, kTwoBytes<T>);
          const Two v = load_two(from + i, n), d = load_two(gradient + i, n);
          store_two({where_within(v.a, limit, d.a), where_within(v.b, limit, d.b)}, to + i, n);
        });
      }
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(run_clip);
HWY_EXPORT(run_clip_backward);

void clip(const ClipArgs& args, Stream& stream) {
  check(args);
  HWY_DYNAMIC_DISPATCH(run_clip)(args, stream);
}

void clip_backward(const ClipBackwardArgs& args, Stream& stream) {
  check(args);
  HWY_DYNAMIC_DISPATCH(run_clip_backward)(args, stream);
}

}  // namespace megatron::kernels::cpu
#endif
