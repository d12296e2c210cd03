#include <limits>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/formula_loops-inl.h"
#include "kernels/cpu/silu-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

// x sigmoid(2 u), which is 0.5 x (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3).
template <class T>
struct GeluTanh {
  static Lanes minus_twice_u(Lanes x, Lanes xx) {
    return x * fma(xx, kUnit<T> * -0.0713548163f, kUnit<T> * -1.59576912f);
  }
  static Lanes value(Lanes x) { return times_sigmoid_of_negative<T>(x, minus_twice_u(x, x * x)); }
  static Slope slope(Lanes x) {
    const Lanes xx = x * x, s = sigmoid_of_negative<T>(minus_twice_u(x, xx)), xs = x * s;
    const Lanes du = fma(xx, 0.214064449f, 1.59576912f);
    return {xs, fma(xs * (1.0f - s), du, s)};
  }
};

// Phi(x), the standard normal distribution function; absolute error below 1e-7, 0 for x < -5.65.
// Uses erfc(z) = exp(-z p(z)) with a polynomial p on [0, 4].
HWY_INLINE Lanes normal_distribution(Lanes x) {
  const Lanes z = abs(x) * 0.707106781f, y = min(4.0f, z);
  Lanes p = fma(y, -8.04070205e-6f, 0.000106005522f);
  p = fma(p, y, -0.000587909538f);
  p = fma(p, y, 0.00157677345f);
  p = fma(p, y, -5.89235460e-5f);
  p = fma(p, y, -0.0192169580f);
  p = fma(p, y, 0.102799108f);
  p = fma(p, y, 0.636616132f);
  p = fma(p, y, 1.12837933f);
  const Lanes tail = select(z > 4.0f, 0.0f, 0.5f * exp(-(p * y)));
  return select(x < 0.0f, tail, 1.0f - tail);
}

// log2((1 - Phi(x)) / Phi(x)) for results that are stored as bf16. Odd: x times a polynomial of
// degree 6 in x^2, which is held constant beyond 5.7 (Phi(-5.7) = 6e-9). Relative error of Phi
// below 3e-4, a sixth of half a bf16 step; error of x Phi(x) below 5e-5.
HWY_INLINE Lanes normal_log_odds(Lanes x, Lanes xx) {
  const Lanes z = min(32.5f, xx);
  Lanes q = fma(z, -6.7698747e-10f, 7.83051e-8f);
  q = fma(q, z, -3.400477e-6f);
  q = fma(q, z, 5.636686e-5f);
  q = fma(q, z, 7.499228e-4f);
  q = fma(q, z, -0.10667141f);
  q = fma(q, z, -2.3006554f);
  return x * q;
}

template <class T>
struct GeluErf {
  static constexpr bool kShort = sizeof(T) == sizeof(bf16);
  static Lanes value(Lanes x) {
    if constexpr (kShort) {
      return times_sigmoid_of_negative<T>(x, normal_log_odds(x, x * x));
    } else {
      return x * normal_distribution(x);
    }
  }
  static Lanes distribution(Lanes x, Lanes xx) {
    if constexpr (kShort) {
      return sigmoid_of_negative<T>(normal_log_odds(x, xx));
    } else {
      return normal_distribution(x);
    }
  }
  static Slope slope(Lanes x) {
    const Lanes xx = x * x, p = distribution(x, xx);
    const Lanes density = 0.398942280f * power<T>(xx * (kUnit<T> * -0.5f));
    return {x * p, fma(x, density, p)};
  }
};

template <class T>
struct Relu {
  static Lanes value(Lanes x) { return max(0.0f, x); }
  static Slope slope(Lanes x) { return {value(x), select(x > 0.0f, 1.0f, 0.0f)}; }
};

template <class T>
struct SquaredRelu {
  static Lanes value(Lanes x) {
    const Lanes positive = max(0.0f, x);
    return positive * positive;
  }
  static Slope slope(Lanes x) {
    const Lanes positive = max(0.0f, x);
    return {positive * positive, positive + positive};
  }
};

// x sigmoid(1.702 x).
template <class T>
struct QuickGelu {
  static Lanes minus(Lanes x) { return x * (-1.702f * kUnit<T>); }
  static Lanes value(Lanes x) { return times_sigmoid_of_negative<T>(x, minus(x)); }
  static Slope slope(Lanes x) {
    const Lanes s = sigmoid_of_negative<T>(minus(x)), xs = x * s;
    return {xs, fma(xs * 1.702f, 1.0f - s, s)};
  }
};

#define LANES HWY_INLINE
#include "kernels/activation_formulas-inl.h"
#undef LANES

// Calls f with the gate of the arguments.
template <class Args, class F>
void for_gate(const Args& args, F&& f) {
  args.clamp > 0 || args.up_offset != 0 ? f(ClampedGate(args)) : f(PlainGate());
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

// Prefetches for a gated loop, since half rows are too short for the hardware prefetcher. It
// prefetches the next row in memory order rather than by halves, which is faster.
template <class Form>
struct AheadBelow {
  int64_t width;  // of one half
  HWY_INLINE void operator()(const Operands<Form>& at, int64_t i) const {
    using T = typename Form::T;
    prefetch(reinterpret_cast<const T*>(at[0].p) + 2 * (width + i), 2 * kPairBytes<T>);
    if constexpr (Form::kInputs == 3)
      prefetch(reinterpret_cast<const T*>(at[2].p) + width + i, kPairBytes<T>);
  }
};

// One half of rows [gate | up], or whole rows if ungated.
template <class T>
OperandRows rows_of(const Tensor& t, int64_t half, int64_t halves, int64_t width, bool streamed) {
  return {reinterpret_cast<std::byte*>(t.data<T>() + half * width),
          halves * width * static_cast<int64_t>(sizeof(T)), streamed};
}

void forward(const ActivationArgs& args, Stream& stream) {
  for_storage_type("activation", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t width = args.gated ? args.out.size(1) : args.x.elements();
    const bool streamed =
        is_streamed(args.out, args.gated ? width : kBlockElements, {args.x.raw()});
    const OperandRows out = rows_of<T>(args.out, 0, 1, width, streamed);
    for_function<T>(args.function, [&](auto function) {
      using Function = decltype(function);
      if (!args.gated) {
        return run_rows<PlainForm<T, 1, 1>>(1, width, Activated<Function>(),
                                            {rows_of<T>(args.x, 0, 1, width, false), out}, stream);
      }
      for_gate(args, [&](const auto& gating) {
        using Form = PlainForm<T, 2, 1>;
        const Operands<Form> all{rows_of<T>(args.x, 0, 2, width, false),
                                 rows_of<T>(args.x, 1, 2, width, false), out};
        run_rows<Form>(args.out.size(0), width,
                       Gated<Function, std::decay_t<decltype(gating)>>{gating}, all, stream,
                       AheadBelow<Form>{width});
      });
    });
  });
}

void backward(const ActivationBackwardArgs& args, Stream& stream) {
  for_storage_type("activation_backward", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t width = args.gated ? args.dout.size(1) : args.x.elements();
    const bool streamed =
        is_streamed(args.dx, args.gated ? width : kBlockElements, {args.x.raw(), args.dout.raw()});
    const OperandRows dout = rows_of<T>(args.dout, 0, 1, width, false);
    for_function<T>(args.function, [&](auto function) {
      using Function = decltype(function);
      if (!args.gated) {
        return run_rows<PlainForm<T, 2, 1>>(1, width, ActivatedBackward<Function>(),
                                            {rows_of<T>(args.x, 0, 1, width, false), dout,
                                             rows_of<T>(args.dx, 0, 1, width, streamed)},
                                            stream);
      }
      for_gate(args, [&](const auto& gating) {
        using Form = PlainForm<T, 3, 2>;
        const Operands<Form> all{
            rows_of<T>(args.x, 0, 2, width, false), rows_of<T>(args.x, 1, 2, width, false), dout,
            rows_of<T>(args.dx, 0, 2, width, streamed), rows_of<T>(args.dx, 1, 2, width, streamed)};
        run_rows<Form>(args.dout.size(0), width,
                       GatedBackward<Function, std::decay_t<decltype(gating)>>{gating}, all, stream,
                       AheadBelow<Form>{width});
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
  HWY_DYNAMIC_DISPATCH(forward)(args, stream);
}

void activation_backward(const ActivationBackwardArgs& args, Stream& stream) {
  HWY_DYNAMIC_DISPATCH(backward)(args, stream);
}

}  // namespace megatron::kernels::cpu
#endif
