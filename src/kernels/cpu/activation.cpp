#include "kernels/cpu/activation.h"

#include "kernels/check.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

// Value and derivative at x.
struct Slope {
  V value, derivative;
};

// x sigmoid(2 u), which is 0.5 x (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3).
struct GeluTanh {
  static V twice_u(V x, V xx) {
    return hn::Mul(x, hn::MulAdd(xx, set(0.0713548163f), set(1.59576912f)));
  }
  static V value(V x) { return hn::Mul(x, sigmoid(twice_u(x, hn::Mul(x, x)))); }
  static Slope slope(V x) {
    const V xx = hn::Mul(x, x);
    const V s = sigmoid(twice_u(x, xx));
    const V xs = hn::Mul(x, s);
    const V du = hn::MulAdd(xx, set(0.214064449f), set(1.59576912f));
    return {xs, hn::MulAdd(hn::Mul(xs, hn::Sub(set(1.0f), s)), du, s)};
  }
};

struct GeluErf {
  static V value(V x) { return hn::Mul(x, normal_distribution(x)); }
  static Slope slope(V x) {
    const V p = normal_distribution(x);
    const V density = hn::Mul(set(0.398942280f), exp(hn::Mul(hn::Mul(x, x), set(-0.5f))));
    return {hn::Mul(x, p), hn::MulAdd(x, density, p)};
  }
};

struct Silu {
  static V value(V x) { return hn::Mul(x, sigmoid(x)); }
  static Slope slope(V x) {
    const V s = sigmoid(x);
    const V xs = hn::Mul(x, s);
    return {xs, hn::MulAdd(xs, hn::Sub(set(1.0f), s), s)};
  }
};

struct Relu {
  static V value(V x) { return hn::Max(hn::Zero(kFloats), x); }
  static Slope slope(V x) {
    return {value(x), hn::IfThenElseZero(hn::Gt(x, hn::Zero(kFloats)), set(1.0f))};
  }
};

template <class F>
void for_function(Activation function, F&& f) {
  switch (function) {
    case Activation::gelu_tanh: return f(GeluTanh{});
    case Activation::gelu_erf: return f(GeluErf{});
    case Activation::silu: return f(Silu{});
    case Activation::relu: return f(Relu{});
  }
}

void forward(const ActivationArgs& args, Stream& stream) {
  for_storage_type("activation", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    T* out = args.out.data<T>();
    for_function(args.function, [&](auto function) {
      using Function = decltype(function);
      if (!args.gated) {
        for_blocks(stream, args.x.elements(), kBlockElements, [&](int64_t begin, int64_t end) {
          for_vectors(begin, end, [&](int64_t i, auto n) {
            store(Function::value(load(x + i, n)), out + i, n);
          });
        });
        return;
      }
      const int64_t rows = args.out.size(0), width = args.out.size(1);
      for_blocks(stream, rows, rows_per_block(width), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const T* gate = x + row * 2 * width;
          const T* up = gate + width;
          T* to = out + row * width;
          for_vectors(0, width, [&](int64_t i, auto n) {
            store(hn::Mul(Function::value(load(gate + i, n)), load(up + i, n)), to + i, n);
          });
        }
      });
    });
  });
}

void backward(const ActivationBackwardArgs& args, Stream& stream) {
  for_storage_type("activation_backward", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    const T* dout = args.dout.data<T>();
    T* dx = args.dx.data<T>();
    for_function(args.function, [&](auto function) {
      using Function = decltype(function);
      if (!args.gated) {
        for_blocks(stream, args.x.elements(), kBlockElements, [&](int64_t begin, int64_t end) {
          for_vectors(begin, end, [&](int64_t i, auto n) {
            store(hn::Mul(load(dout + i, n), Function::slope(load(x + i, n)).derivative), dx + i,
                  n);
          });
        });
        return;
      }
      const int64_t rows = args.dout.size(0), width = args.dout.size(1);
      for_blocks(stream, rows, rows_per_block(width), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const T* gate = x + row * 2 * width;
          const T* d = dout + row * width;
          T* to = dx + row * 2 * width;
          for_vectors(0, width, [&](int64_t i, auto n) {
            const Slope slope = Function::slope(load(gate + i, n));
            const V up = load(gate + width + i, n), g = load(d + i, n);
            store(hn::Mul(hn::Mul(g, up), slope.derivative), to + i, n);
            store(hn::Mul(g, slope.value), to + width + i, n);
          });
        }
      });
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(forward);
HWY_EXPORT(backward);

void activation(const ActivationArgs& args, Stream& stream) {
  check(args);
  HWY_DYNAMIC_DISPATCH(forward)(args, stream);
}

void activation_backward(const ActivationBackwardArgs& args, Stream& stream) {
  check(args);
  HWY_DYNAMIC_DISPATCH(backward)(args, stream);
}

}  // namespace megatron::kernels::cpu
#endif
