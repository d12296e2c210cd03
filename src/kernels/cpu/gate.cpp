#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gate.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE V sigmoid(V x) { return hn::Div(set(1.0f), hn::Add(set(1.0f), exp(hn::Neg(x)))); }

void run_gate(const GateArgs& args, Stream& stream) {
  for_storage_type("gate", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    const T* gate = args.gate.data<T>();
    const Output<T> out = output_of<T>(args.out, args.out.stride(0), {x, gate});
    const int64_t width = args.x.size(1);
    for_blocks(stream, args.x.size(0), rows_per_block(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* from = x + row * args.x.stride(0);
        const T* by = gate + row * args.gate.stride(0);
        const Output<T> to = out + row * args.out.stride(0);
        for_twos(0, width, [&](int64_t i, auto n) {
          const Two v = load_two(from + i, n), g = load_two(by + i, n);
          store_two({hn::Mul(v.a, sigmoid(g.a)), hn::Mul(v.b, sigmoid(g.b))}, to + i, n);
        });
      }
    });
  });
}

struct GateSlopes {
  V dx, dgate;
};
HWY_INLINE GateSlopes gate_slopes(V x, V gate, V dout) {
  const V s = sigmoid(gate), dx = hn::Mul(dout, s);
  return {dx, hn::Mul(hn::Mul(dx, x), hn::Sub(set(1.0f), s))};
}

void run_gate_backward(const GateBackwardArgs& args, Stream& stream) {
  for_storage_type("gate_backward", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    const T* gate = args.gate.data<T>();
    const T* dout = args.dout.data<T>();
    const Output<T> dx = output_of<T>(args.dx, args.dx.stride(0), {x, gate, dout});
    const Output<T> dgate = output_of<T>(args.dgate, args.dgate.stride(0), {x, gate, dout});
    const int64_t width = args.x.size(1);
    for_blocks(stream, args.x.size(0), rows_per_block(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* from = x + row * args.x.stride(0);
        const T* by = gate + row * args.gate.stride(0);
        const T* gradient = dout + row * args.dout.stride(0);
        const Output<T> to = dx + row * args.dx.stride(0);
        const Output<T> to_gate = dgate + row * args.dgate.stride(0);
        for_twos(0, width, [&](int64_t i, auto n) {
          const Two v = load_two(from + i, n), g = load_two(by + i, n);
          const Two d = load_two(gradient + i, n);
          const GateSlopes a = gate_slopes(v.a, g.a, d.a), b = gate_slopes(v.b, g.b, d.b);
          store_two({a.dx, b.dx}, to + i, n);
          store_two({a.dgate, b.dgate}, to_gate + i, n);
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

HWY_EXPORT(run_gate);
HWY_EXPORT(run_gate_backward);

void gate(const GateArgs& args, Stream& stream) {
  check(args);
  HWY_DYNAMIC_DISPATCH(run_gate)(args, stream);
}

void gate_backward(const GateBackwardArgs& args, Stream& stream) {
  check(args);
  HWY_DYNAMIC_DISPATCH(run_gate_backward)(args, stream);
}

}  // namespace megatron::kernels::cpu
#endif
