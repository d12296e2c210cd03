#include <limits>

#include "kernels/cuda/formula_loops.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/silu.h"

namespace megatron::kernels::cuda {
namespace {

// x sigmoid(2 u), which is 0.5 x (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3).
struct GeluTanh {
  __device__ static float minus_twice_u(float x) {
    return x * fmaf(x * x, -0.0713548163f, -1.59576912f);
  }
  __device__ static float value(float x) { return x * sigmoid_of_minus(minus_twice_u(x)); }
  __device__ static Slope slope(float x) {
    const float s = sigmoid_of_minus(minus_twice_u(x)), xs = x * s;
    return {xs, fmaf(xs * (1.0f - s), fmaf(x * x, 0.214064449f, 1.59576912f), s)};
  }
};
// x Phi(x). For large |x|, the tail is a polynomial of t = 1 / (1 + 0.3275911 |x| / sqrt(2)) times
// exp(-x^2 / 2) / 2, within 7.5e-8 (Abramowitz & Stegun 7.1.26).
struct GeluErf {
  // e is exp(-x^2 / 2).
  __device__ static float distribution(float x, float e) {
    const float t = reciprocal_approx(fmaf(0.231641888f, fabsf(x), 1.0f));
    float p = fmaf(t, 0.530702715f, -0.726576013f);
    p = fmaf(t, p, 0.710706870f);
    p = fmaf(t, p, -0.142248368f);
    p = fmaf(t, p, 0.127414796f);
    const float rest = p * t * e;
    return x < 0.0f ? rest : 1.0f - rest;
  }
  __device__ static float value(float x) { return x * distribution(x, exp_approx(-0.5f * x * x)); }
  __device__ static Slope slope(float x) {
    const float e = exp_approx(-0.5f * x * x), d = distribution(x, e);
    return {x * d, fmaf(x, 0.398942280f * e, d)};
  }
};
struct Relu {
  __device__ static float value(float x) { return x > 0.0f ? x : 0.0f; }
  __device__ static Slope slope(float x) { return x > 0.0f ? Slope{x, 1.0f} : Slope{0.0f, 0.0f}; }
};

struct SquaredRelu {
  __device__ static float value(float x) { return x > 0.0f ? x * x : 0.0f; }
  __device__ static Slope slope(float x) {
    return x > 0.0f ? Slope{x * x, 2.0f * x} : Slope{0.0f, 0.0f};
  }
};
struct QuickGelu {
  __device__ static float value(float x) { return x * sigmoid_of_minus(-1.702f * x); }
  __device__ static Slope slope(float x) {
    const float s = sigmoid_of_minus(-1.702f * x);
    return {x * s, s * fmaf(1.702f * x, 1.0f - s, 1.0f)};
  }
};

// Calls f with the activation function named by the argument.
template <class F>
__device__ void with(Activation function, F f) {
  switch (function) {
    case Activation::gelu_tanh: return f(GeluTanh{});
    case Activation::gelu_erf: return f(GeluErf{});
    case Activation::silu: return f(Silu{});
    case Activation::relu: return f(Relu{});
    case Activation::squared_relu: return f(SquaredRelu{});
    case Activation::quick_gelu: return f(QuickGelu{});
  }
}

#define LANES __device__
#include "kernels/activation_formulas-inl.h"
#undef LANES

// The formula of a call. Its function is selected on the device, so that one kernel serves all
// functions.
template <bool kBackward, bool kGated>
struct Chosen {
  Activation function;
  ClampedGate gating;
};
template <bool kBackward, bool kGated, class Loops>
__device__ void with_formula(const Chosen<kBackward, kGated>& all, Loops loops) {
  with(all.function, [&](auto function) {
    using Function = decltype(function);
    if constexpr (kGated && kBackward) {
      loops(GatedBackward<Function, ClampedGate>{all.gating});
    } else if constexpr (kGated) {
      loops(Gated<Function, ClampedGate>{all.gating});
    } else if constexpr (kBackward) {
      loops(ActivatedBackward<Function>());
    } else {
      loops(Activated<Function>());
    }
  });
}

// One half of the rows of x or dx, [gate | up]. An ungated tensor is treated as a single row.
template <class T>
struct Half {
  const Tensor& tensor;
  int64_t half, halves;
};

// Chunks that a thread reads before it computes, to keep more loads in flight.
constexpr int kTogether = 2;

template <bool kBackward, bool kGated, class T, class Args, size_t kOperands>
void run(const char* kernel, const Args& args, int64_t rows, int64_t width,
         const Half<T> (&halves)[kOperands], Stream& stream) {
  constexpr size_t kOutputs = kBackward && kGated ? 2 : 1;
  using Form = PlainForm<T, kOperands - kOutputs, kOutputs>;
  FormulaBody<Form, Chosen<kBackward, kGated>> body{.formula = {args.function, ClampedGate(args)}};
  for (size_t k = 0; k < kOperands; ++k) {
    body.operands[k] = static_cast<T*>(halves[k].tensor.address()) + halves[k].half * width;
    body.strides[k] = halves[k].halves * width;
  }
  run_over_rows<kTogether>(kernel, rows, width, body, stream);
}

}  // namespace

void activation(const ActivationArgs& args, Stream& stream) {
  for_storage_type("activation", args.x.dtype(), [&](auto type) {
    using H = Half<decltype(type)>;
    const Tensor &x = args.x, &out = args.out;
    if (args.gated) {
      const H halves[] = {{x, 0, 2}, {x, 1, 2}, {out, 0, 1}};
      return run<false, true>("activation", args, out.size(0), out.size(1), halves, stream);
    }
    const H all[] = {{x, 0, 1}, {out, 0, 1}};
    run<false, false>("activation", args, 1, x.elements(), all, stream);
  });
}

void activation_backward(const ActivationBackwardArgs& args, Stream& stream) {
  for_storage_type("activation_backward", args.x.dtype(), [&](auto type) {
    using H = Half<decltype(type)>;
    const Tensor &x = args.x, &dout = args.dout, &dx = args.dx;
    if (args.gated) {
      const H halves[] = {{x, 0, 2}, {x, 1, 2}, {dout, 0, 1}, {dx, 0, 2}, {dx, 1, 2}};
      return run<true, true>("activation_backward", args, dout.size(0), dout.size(1), halves,
                             stream);
    }
    const H all[] = {{x, 0, 1}, {dout, 0, 1}, {dx, 0, 1}};
    run<true, false>("activation_backward", args, 1, x.elements(), all, stream);
  });
}

}  // namespace megatron::kernels::cuda
