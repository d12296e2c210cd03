#include <limits>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows_ahead.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/table.h"

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

// e^(y / kUnit<T>) for results that are stored as T: exponents of bf16 come in base 2.
template <class T>
inline constexpr float kUnit = sizeof(T) == sizeof(bf16) ? 1.44269504f : 1.0f;
template <class T>
HWY_INLINE V power(V y) {
  return sizeof(T) == sizeof(bf16) ? exp2_for_bf16(y) : exp(y);
}
template <class T>
HWY_INLINE V sigmoid_of_negative(V y) {
  return hn::Div(set(1.0f), hn::Add(set(1.0f), power<T>(y)));
}
template <class T>
HWY_INLINE V times_sigmoid_of_negative(V x, V y) {
  return hn::Div(x, hn::Add(set(1.0f), power<T>(y)));
}

// x sigmoid(2 u), which is 0.5 x (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3).
template <class T>
struct GeluTanh {
  static V minus_twice_u(V x, V xx) {
    return hn::Mul(x, hn::MulAdd(xx, set(kUnit<T> * -0.0713548163f), set(kUnit<T> * -1.59576912f)));
  }
  static V value(V x) { return times_sigmoid_of_negative<T>(x, minus_twice_u(x, hn::Mul(x, x))); }
  static Slope slope(V x) {
    const V xx = hn::Mul(x, x);
    const V s = sigmoid_of_negative<T>(minus_twice_u(x, xx));
    const V xs = hn::Mul(x, s);
    const V du = hn::MulAdd(xx, set(0.214064449f), set(1.59576912f));
    return {xs, hn::MulAdd(hn::Mul(xs, hn::Sub(set(1.0f), s)), du, s)};
  }
};

// Phi(x), the distribution function of the normal distribution; absolute error below 1e-7, 0 for x
// < -5.65. By erfc(z) = exp(-z p(z)), p a polynomial on [0, 4].
HWY_INLINE V normal_distribution(V x) {
  const V z = hn::Mul(hn::Abs(x), set(0.707106781f));
  const V y = hn::Min(set(4.0f), z);
  V p = hn::MulAdd(y, set(-8.04070205e-6f), set(0.000106005522f));
  p = hn::MulAdd(p, y, set(-0.000587909538f));
  p = hn::MulAdd(p, y, set(0.00157677345f));
  p = hn::MulAdd(p, y, set(-5.89235460e-5f));
  p = hn::MulAdd(p, y, set(-0.0192169580f));
  p = hn::MulAdd(p, y, set(0.102799108f));
  p = hn::MulAdd(p, y, set(0.636616132f));
  p = hn::MulAdd(p, y, set(1.12837933f));
  const V half = hn::Mul(set(0.5f), exp(hn::Neg(hn::Mul(p, y))));
  const V tail = hn::IfThenZeroElse(hn::Gt(z, set(4.0f)), half);
  return hn::IfThenElse(hn::Lt(x, hn::Zero(kFloats)), tail, hn::Sub(set(1.0f), tail));
}

// log2((1 - Phi(x)) / Phi(x)) for results that are stored as bf16: odd, x times a polynomial of
// degree 6 in x^2, which stays where it is beyond 5.7 (Phi(-5.7) = 6e-9). Relative error of Phi
// below 3e-4, a sixth of half a step of bf16; error of x Phi(x) below 5e-5.
HWY_INLINE V normal_log_odds(V x, V xx) {
  const V z = hn::Min(set(32.5f), xx);
  V q = hn::MulAdd(z, set(-6.7698747e-10f), set(7.83051e-8f));
  q = hn::MulAdd(q, z, set(-3.400477e-6f));
  q = hn::MulAdd(q, z, set(5.636686e-5f));
  q = hn::MulAdd(q, z, set(7.499228e-4f));
  q = hn::MulAdd(q, z, set(-0.10667141f));
  q = hn::MulAdd(q, z, set(-2.3006554f));
  return hn::Mul(x, q);
}

template <class T>
struct GeluErf {
  static constexpr bool kShort = sizeof(T) == sizeof(bf16);
  static V value(V x) {
    if constexpr (kShort) {
      return times_sigmoid_of_negative<T>(x, normal_log_odds(x, hn::Mul(x, x)));
    } else {
      return hn::Mul(x, normal_distribution(x));
    }
  }
  static Slope slope(V x) {
    const V xx = hn::Mul(x, x);
    V p;
    if constexpr (kShort) {
      p = sigmoid_of_negative<T>(normal_log_odds(x, xx));
    } else {
      p = normal_distribution(x);
    }
    const V density = hn::Mul(set(0.398942280f), power<T>(hn::Mul(xx, set(kUnit<T> * -0.5f))));
    return {hn::Mul(x, p), hn::MulAdd(x, density, p)};
  }
};

template <class T>
struct Silu {
  static V minus(V x) { return hn::Mul(x, set(-kUnit<T>)); }
  static V value(V x) { return times_sigmoid_of_negative<T>(x, minus(x)); }
  static Slope slope(V x) {
    const V s = sigmoid_of_negative<T>(minus(x));
    const V xs = hn::Mul(x, s);
    return {xs, hn::MulAdd(xs, hn::Sub(set(1.0f), s), s)};
  }
};

template <class T>
struct Relu {
  static V value(V x) { return hn::Max(hn::Zero(kFloats), x); }
  static Slope slope(V x) {
    return {value(x), hn::IfThenElseZero(hn::Gt(x, hn::Zero(kFloats)), set(1.0f))};
  }
};

template <class T>
struct SquaredRelu {
  static V value(V x) {
    const V positive = hn::Max(hn::Zero(kFloats), x);
    return hn::Mul(positive, positive);
  }
  static Slope slope(V x) {
    const V positive = hn::Max(hn::Zero(kFloats), x);
    return {hn::Mul(positive, positive), hn::Add(positive, positive)};
  }
};

// x sigmoid(1.702 x).
template <class T>
struct QuickGelu {
  static V minus(V x) { return hn::Mul(x, set(-1.702f * kUnit<T>)); }
  static V value(V x) { return times_sigmoid_of_negative<T>(x, minus(x)); }
  static Slope slope(V x) {
    const V s = sigmoid_of_negative<T>(minus(x));
    const V xs = hn::Mul(x, s);
    return {xs, hn::MulAdd(hn::Mul(xs, set(1.702f)), hn::Sub(set(1.0f), s), s)};
  }
};

// Of a gated block: gate and up as they are, or clamped and with an offset.
struct PlainGate {
  template <class Args>
  explicit PlainGate(const Args&) {}
  V gate(V g) const { return g; }
  V factor(V u) const { return u; }
  V gate_gradient(V, V d) const { return d; }
  V up_gradient(V, V d) const { return d; }
};
struct ClampedGate {
  V clamp, offset;
  template <class Args>
  explicit ClampedGate(const Args& args)
      : clamp(set(args.clamp > 0 ? static_cast<float>(args.clamp)
                                 : std::numeric_limits<float>::infinity())),
        offset(set(static_cast<float>(args.up_offset))) {}
  // A NaN stays one.
  V gate(V g) const { return hn::IfThenElse(hn::Gt(g, clamp), clamp, g); }
  V factor(V u) const { return hn::Add(clamped(u), offset); }
  V gate_gradient(V g, V d) const { return hn::IfThenZeroElse(hn::Gt(g, clamp), d); }
  V up_gradient(V u, V d) const { return hn::IfThenZeroElse(hn::Gt(hn::Abs(u), clamp), d); }

 private:
  V clamped(V u) const {
    return hn::IfThenElse(hn::Gt(hn::Abs(u), clamp), hn::CopySign(clamp, u), u);
  }
};

// Calls f with the gate of the arguments.
template <class Args, class F>
void for_gate(const Args& args, F&& f) {
  args.clamp > 0 || args.up_offset != 0 ? f(ClampedGate(args)) : f(PlainGate(args));
}

template <class T, class F>
void for_function(Activation function, F&& f) {
  switch (function) {
    case Activation::gelu_tanh: return f(GeluTanh<T>{});
    case Activation::gelu_erf: return f(GeluErf<T>{});
    case Activation::silu: return f(Silu<T>{});
    case Activation::relu: return f(Relu<T>{});
    case Activation::squared_relu: return f(SquaredRelu<T>{});
    case Activation::quick_gelu: return f(QuickGelu<T>{});
  }
}

void forward(const ActivationArgs& args, Stream& stream) {
  for_storage_type("activation", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    const Output<T> out =
        output_of<T>(args.out, args.gated ? args.out.size(1) : kBlockElements, {x});
    for_function<T>(args.function, [&](auto function) {
      using Function = decltype(function);
      if (!args.gated) {
        for_blocks(stream, args.x.elements(), kBlockElements, [&](int64_t begin, int64_t end) {
          for_twos(begin, end, [&](int64_t i, auto n) {
            ask_for(x + i + kElementsAhead<T>, kTwoBytes<T>);
            const Two v = load_two(x + i, n);
            store_two({Function::value(v.a), Function::value(v.b)}, out + i, n);
          });
        });
        return;
      }
      const int64_t rows = args.out.size(0), width = args.out.size(1);
      for_gate(args, [&](const auto& gating) {
        for_blocks(stream, rows, rows_per_block(width), [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row) {
            const T* gate = x + row * 2 * width;
            const T* up = gate + width;
            const Output<T> to = out + row * width;
            // Halves of rows are too short for the processor to foresee. The row below is asked for
            // as it lies, not by halves: that is faster.
            const T* below = gate + 2 * width;
            for_twos(0, width, [&](int64_t i, auto n) {
              ask_for(below + 2 * i, 2 * kTwoBytes<T>);
              const Two g = load_two(gate + i, n), u = load_two(up + i, n);
              store_two({hn::Mul(Function::value(gating.gate(g.a)), gating.factor(u.a)),
                         hn::Mul(Function::value(gating.gate(g.b)), gating.factor(u.b))},
                        to + i, n);
            });
          }
        });
      });
    });
  });
}

void backward(const ActivationBackwardArgs& args, Stream& stream) {
  for_storage_type("activation_backward", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    const T* dout = args.dout.data<T>();
    const Output<T> dx =
        output_of<T>(args.dx, args.gated ? args.dout.size(1) : kBlockElements, {x, dout});
    for_function<T>(args.function, [&](auto function) {
      using Function = decltype(function);
      if (!args.gated) {
        for_blocks(stream, args.x.elements(), kBlockElements, [&](int64_t begin, int64_t end) {
          for_twos(begin, end, [&](int64_t i, auto n) {
            ask_for(x + i + kElementsAhead<T>, kTwoBytes<T>);
            ask_for(dout + i + kElementsAhead<T>, kTwoBytes<T>);
            const Two v = load_two(x + i, n), d = load_two(dout + i, n);
            store_two({hn::Mul(d.a, Function::slope(v.a).derivative),
                       hn::Mul(d.b, Function::slope(v.b).derivative)},
                      dx + i, n);
          });
        });
        return;
      }
      const int64_t rows = args.dout.size(0), width = args.dout.size(1);
      for_gate(args, [&](const auto& gating) {
        for_blocks(stream, rows, rows_per_block(width), [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row) {
            const T* gate = x + row * 2 * width;
            const T* d = dout + row * width;
            const Output<T> to = dx + row * 2 * width;
            const T* below = gate + 2 * width;  // asked for as in `forward`
            for_twos(0, width, [&](int64_t i, auto n) {
              ask_for(below + 2 * i, 2 * kTwoBytes<T>);
              ask_for(d + width + i, kTwoBytes<T>);
              const Two x_gate = load_two(gate + i, n), up = load_two(gate + width + i, n);
              const Two g = load_two(d + i, n);
              const Slope a = Function::slope(gating.gate(x_gate.a)),
                          b = Function::slope(gating.gate(x_gate.b));
              const auto of_gate = [&](V x, V d, V u, V slope) {
                return gating.gate_gradient(x, hn::Mul(hn::Mul(d, gating.factor(u)), slope));
              };
              store_two({of_gate(x_gate.a, g.a, up.a, a.derivative),
                         of_gate(x_gate.b, g.b, up.b, b.derivative)},
                        to + i, n);
              store_two({gating.up_gradient(up.a, hn::Mul(g.a, a.value)),
                         gating.up_gradient(up.b, hn::Mul(g.b, b.value))},
                        to + width + i, n);
            });
          }
        });
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
