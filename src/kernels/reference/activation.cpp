#include <cmath>
#include <numbers>

#include "base/error.h"
#include "kernels/reference/elements.h"
#include "kernels/reference/gelu.h"
#include "kernels/reference/kernels.h"
#include "kernels/table.h"

namespace megatron::kernels::reference {
namespace {

template <class C>
ValueAndSlope<C> gelu_erf(C x) {
  const C half = static_cast<C>(0.5);
  const C cumulative = half * std::erfc(-x / std::numbers::sqrt2_v<C>);
  const C density = std::exp(-half * x * x) / std::sqrt(2 * std::numbers::pi_v<C>);
  return {x * cumulative, cumulative + x * density};
}

template <class C>
ValueAndSlope<C> silu(C x) {
  const C sigmoid = 1 / (1 + std::exp(-x));
  return {x * sigmoid, sigmoid * (1 + x * (1 - sigmoid))};
}

template <class C>
ValueAndSlope<C> quick_gelu(C x) {
  const C rate = static_cast<C>(1.702), sigmoid = 1 / (1 + std::exp(-rate * x));
  return {x * sigmoid, sigmoid * (1 + rate * x * (1 - sigmoid))};
}

template <class C>
ValueAndSlope<C> evaluate(Activation function, C x) {
  switch (function) {
    case Activation::gelu_tanh: return gelu_tanh(x);
    case Activation::gelu_erf: return gelu_erf(x);
    case Activation::silu: return silu(x);
    case Activation::squared_relu:
      return x > 0 ? ValueAndSlope<C>{x * x, 2 * x} : ValueAndSlope<C>{0, 0};
    case Activation::quick_gelu: return quick_gelu(x);
    case Activation::relu: return x > 0 ? ValueAndSlope<C>{x, 1} : ValueAndSlope<C>{0, 0};
  }
  MG_ASSERT(false);
}

// Inputs of a gated block: the gate function's argument, and the factor on its value.
template <class C>
struct Gated {
  C gate, factor;
  bool gate_passes, up_passes;  // whether gradients pass

  template <class Args>
  Gated(const Args& args, C x, C up) : gate(x), factor(up), gate_passes(true), up_passes(true) {
    const C clamp = static_cast<C>(args.clamp);
    if (args.clamp > 0) {
      gate_passes = !(x > clamp);
      up_passes = !(up > clamp || up < -clamp);
      gate = gate_passes ? x : clamp;
      factor = up > clamp ? clamp : up < -clamp ? -clamp : up;
    }
    factor += static_cast<C>(args.up_offset);
  }
};

template <class C>
void apply(const ActivationArgs& args, Stream& stream) {
  const std::vector<C> x = load<C>(args.x);
  const int64_t rows = args.out.size(0), f = args.out.size(1), width = args.x.size(1);
  std::vector<C> out(rows * f);
  for_rows(stream, rows, 64, [&](int64_t t) {
    for (int64_t i = 0; i < f; ++i) {
      if (!args.gated) {
        out[t * f + i] = evaluate(args.function, x[t * width + i]).value;
        continue;
      }
      const Gated<C> g(args, x[t * width + i], x[t * width + f + i]);
      out[t * f + i] = evaluate(args.function, g.gate).value * g.factor;
    }
  });
  store(args.out, out);
}

template <class C>
void differentiate(const ActivationBackwardArgs& args, Stream& stream) {
  const std::vector<C> x = load<C>(args.x), dout = load<C>(args.dout);
  const int64_t rows = args.dout.size(0), f = args.dout.size(1), width = args.x.size(1);
  std::vector<C> dx(x.size());
  for_rows(stream, rows, 64, [&](int64_t t) {
    for (int64_t i = 0; i < f; ++i) {
      const C d = dout[t * f + i];
      if (!args.gated) {
        dx[t * width + i] = d * evaluate(args.function, x[t * width + i]).slope;
        continue;
      }
      const Gated<C> g(args, x[t * width + i], x[t * width + f + i]);
      const auto [value, slope] = evaluate(args.function, g.gate);
      dx[t * width + i] = g.gate_passes ? d * g.factor * slope : 0;
      dx[t * width + f + i] = g.up_passes ? d * value : 0;
    }
  });
  store(args.dx, dx);
}

}  // namespace

void activation(const ActivationArgs& args, Stream& stream) {
  args.x.dtype() == DType::f64 ? apply<double>(args, stream) : apply<float>(args, stream);
}

void activation_backward(const ActivationBackwardArgs& args, Stream& stream) {
  args.x.dtype() == DType::f64 ? differentiate<double>(args, stream)
                               : differentiate<float>(args, stream);
}

}  // namespace megatron::kernels::reference
