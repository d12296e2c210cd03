#include "kernels/cuda/chunk.h"
#include "kernels/cuda/divisor.h"
#include "kernels/cuda/exponential.h"
#include "kernels/cuda/kernels.h"
#include "kernels/table.h"

namespace megatron::kernels::cuda {
namespace {

// Chunks that a thread reads before it computes, so that more loads are on their way.
constexpr int kTogether = 2;

// Value and derivative at x.
struct Slope {
  float value, derivative;
};

// sigmoid(-x)
__device__ float sigmoid_of_minus(float x) { return reciprocal_approx(1.0f + exp_approx(x)); }

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
// x Phi(x); beyond |x| remains a polynomial of t = 1 / (1 + 0.3275911 |x| / sqrt(2)), times
// exp(-x^2 / 2) / 2, within 7.5e-8 (Abramowitz & Stegun 7.1.26).
struct GeluErf {
  // e: exp(-x^2 / 2)
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
struct Silu {
  __device__ static float value(float x) { return x * sigmoid_of_minus(-x); }
  __device__ static Slope slope(float x) {
    const float s = sigmoid_of_minus(-x);
    return {x * s, s * fmaf(x, 1.0f - s, 1.0f)};
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

// Calls f with one of the above.
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

// Plain tensors are one row.
template <class T>
struct Rows {
  const T *x, *dout;  // dout, dx: of backward
  T *out, *dx;
  int64_t width;   // of out
  uint32_t items;  // chunks of all rows
  Divisor chunks;  // of a row
  Activation function;
  float clamp, up_offset;  // of a gated block; clamp: +infinity for none
  bool whole;

  // What the gate's function sees, and what its value is multiplied by. A NaN stays one.
  __device__ float gate(float g) const { return g > clamp ? clamp : g; }
  __device__ float factor(float u) const {
    return (u > clamp ? clamp : u < -clamp ? -clamp : u) + up_offset;
  }
};

// Where the chunk of an item lies.
struct Place {
  template <class T>
  __device__ Place(const Rows<T>& rows, uint32_t item, bool gated) {
    const uint32_t row = rows.chunks.quotient(item);
    const auto i = static_cast<int64_t>(item - row * rows.chunks.value()) * kChunk<T>;
    count = item < rows.items ? rows.width - i : 0;
    out = row * rows.width + i;
    x = gated ? out + row * rows.width : out;
  }
  int64_t count, out, x;
};

__device__ uint32_t item_of(int k) { return (blockIdx.x * kTogether + k) * kThreads + threadIdx.x; }

template <class T, bool kGated>
__global__ void __launch_bounds__(kThreads) apply(Rows<T> rows) {
  constexpr int N = kChunk<T>;
  Vector<T, N> gate[kTogether], up[kGated ? kTogether : 1];
#pragma unroll
  for (int k = 0; k < kTogether; ++k) {
    const Place at(rows, item_of(k), kGated);
    gate[k] = load_chunk<N>(rows.x + at.x, at.count, rows.whole);
    if constexpr (kGated) up[k] = load_chunk<N>(rows.x + at.x + rows.width, at.count, rows.whole);
  }
  with(rows.function, [&](auto function) {
    using Function = decltype(function);
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const Place at(rows, item_of(k), kGated);
      Vector<T, N> out;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float x = to_float(gate[k].at[j]);
        float value = Function::value(kGated ? rows.gate(x) : x);
        if constexpr (kGated) value *= rows.factor(to_float(up[k].at[j]));
        out.at[j] = from_float<T>(value);
      }
      store_chunk(rows.out + at.out, out, at.count, rows.whole);
    }
  });
}

template <class T, bool kGated>
__global__ void __launch_bounds__(kThreads) differentiate(Rows<T> rows) {
  constexpr int N = kChunk<T>;
  Vector<T, N> gate[kTogether], up[kGated ? kTogether : 1], dout[kTogether];
#pragma unroll
  for (int k = 0; k < kTogether; ++k) {
    const Place at(rows, item_of(k), kGated);
    gate[k] = load_chunk<N>(rows.x + at.x, at.count, rows.whole);
    dout[k] = load_chunk<N>(rows.dout + at.out, at.count, rows.whole);
    if constexpr (kGated) up[k] = load_chunk<N>(rows.x + at.x + rows.width, at.count, rows.whole);
  }
  with(rows.function, [&](auto function) {
    using Function = decltype(function);
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const Place at(rows, item_of(k), kGated);
      Vector<T, N> dgate;
      [[maybe_unused]] Vector<T, N> dup;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float x = to_float(gate[k].at[j]);
        const Slope slope = Function::slope(kGated ? rows.gate(x) : x);
        float d = to_float(dout[k].at[j]);
        if constexpr (kGated) {
          const float u = to_float(up[k].at[j]);
          dup.at[j] = from_float<T>(fabsf(u) > rows.clamp ? 0.0f : d * slope.value);
          d = x > rows.clamp ? 0.0f : d * rows.factor(u);
        }
        dgate.at[j] = from_float<T>(d * slope.derivative);
      }
      store_chunk(rows.dx + at.x, dgate, at.count, rows.whole);
      if constexpr (kGated) store_chunk(rows.dx + at.x + rows.width, dup, at.count, rows.whole);
    }
  });
}

template <class T, class Args>
Rows<T> rows_of(const char* kernel, const Args& args, const Tensor& out, const Tensor& dout,
                const Tensor& dx) {
  const bool gated = args.gated;
  const Tensor& of_width = out.defined() ? out : dout;
  const int64_t width = gated ? of_width.size(1) : of_width.elements();
  const int64_t chunks = ceil_div(width, kChunk<T>);
  const uint32_t items = count_items(kernel, of_width.elements() / width * chunks);
  Rows<T> rows{.x = address_of<T>(args.x),
               .dout = address_of<T>(dout),
               .out = address_of<T>(out),
               .dx = address_of<T>(dx),
               .width = width,
               .items = items,
               .chunks = Divisor(static_cast<uint32_t>(chunks)),
               .function = args.function,
               .clamp = args.clamp > 0 ? static_cast<float>(args.clamp) : INFINITY,
               .up_offset = static_cast<float>(args.up_offset),
               .whole = false};
  rows.whole = rows.width % kChunk<T> == 0 && are_aligned({rows.x, rows.dout, rows.out, rows.dx});
  return rows;
}

Grid grid_of(uint32_t items) { return grid_for(ceil_div(items, kTogether)); }

}  // namespace

void activation(const ActivationArgs& args, Stream& stream) {
  check(args);
  for_storage_type("activation", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    if (args.out.elements() == 0) return;
    const Rows<T> rows = rows_of<T>("activation", args, args.out, {}, {});
    launch("activation", args.gated ? apply<T, true> : apply<T, false>, grid_of(rows.items), stream,
           rows);
  });
}

void activation_backward(const ActivationBackwardArgs& args, Stream& stream) {
  check(args);
  for_storage_type("activation_backward", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    if (args.dout.elements() == 0) return;
    const Rows<T> rows = rows_of<T>("activation_backward", args, {}, args.dout, args.dx);
    launch("activation_backward", args.gated ? differentiate<T, true> : differentiate<T, false>,
           grid_of(rows.items), stream, rows);
  });
}

}  // namespace megatron::kernels::cuda
