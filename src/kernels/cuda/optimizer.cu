#include <cmath>
#include <type_traits>

#include "kernels/cuda/optimizer.h"
#include "kernels/cuda/optimizer_bodies.h"
#include "kernels/cuda/ordered_sum.h"
#include "kernels/cuda/reduce.h"
#include "kernels/table.h"

namespace megatron::kernels::cuda {
namespace {

// The f32 master of a parameter: the parameter itself, or its bf16 and the remainder.
struct PlainMaster {
  float* value;

  bool is_aligned() const { return aligned<kFour>(value); }
  __device__ void read(const Span& span, Four& w) const { cuda::read(value, span, w); }
  __device__ void write(const Span& span, const Four& w) const { cuda::write(value, span, w); }
};

struct SplitMaster {
  uint16_t* value;  // bits of the bf16
  int16_t* remainder;

  bool is_aligned() const { return aligned<kFour>(value) && aligned<kFour>(remainder); }
  __device__ void read(const Span& span, Four& w) const {
    Vector<uint16_t, kFour> values{};
    Vector<int16_t, kFour> remainders{};
    if (span.vector) {
      values = load_vector<uint16_t, kFour>(value + span.first);
      remainders = load_vector<int16_t, kFour>(remainder + span.first);
    } else {
#pragma unroll
      for (int k = 0; k < kFour; ++k) {
        if (k >= span.count) continue;
        values.at[k] = value[span.first + k];
        remainders.at[k] = remainder[span.first + k];
      }
    }
#pragma unroll
    for (int k = 0; k < kFour; ++k) {
      w[k] = __uint_as_float((static_cast<unsigned>(values.at[k]) << 16) +
                             static_cast<unsigned>(static_cast<int>(remainders.at[k])));
    }
  }
  // The remainder is the low half of the master; the value takes its carry.
  __device__ void write(const Span& span, const Four& w) const {
    Vector<uint16_t, kFour> values;
    Vector<int16_t, kFour> remainders;
#pragma unroll
    for (int k = 0; k < kFour; ++k) {
      const unsigned bits = __float_as_uint(w[k]);
      values.at[k] = static_cast<uint16_t>((bits + 0x8000u) >> 16);
      remainders.at[k] = static_cast<int16_t>(static_cast<uint16_t>(bits & 0xffffu));
    }
    if (span.vector) {
      store_vector(value + span.first, values);
      store_vector(remainder + span.first, remainders);
      return;
    }
#pragma unroll
    for (int k = 0; k < kFour; ++k) {
      if (k >= span.count) continue;
      value[span.first + k] = values.at[k];
      remainder[span.first + k] = remainders.at[k];
    }
  }
};

template <class F>
void for_master(const char* kernel, const MasterWeight& parameter, F&& f) {
  void* value = parameter.value.address();
  switch (parameter.value.dtype()) {
    case DType::f32: return f(PlainMaster{static_cast<float*>(value)});
    case DType::bf16:
      return f(SplitMaster{static_cast<uint16_t*>(value),
                           static_cast<int16_t*>(parameter.remainder.address())});
    default: refuse_type(kernel, parameter.value.dtype());
  }
}

// What every step of a parameter reads. weight_decay null: none.
struct Rates {
  const double *lr, *weight_decay, *scale;
};
template <class Args>
Rates rates_of(const Args& args) {
  return {scalar(args.lr), args.decay ? scalar(args.weight_decay) : nullptr, scalar(args.scale)};
}
struct RateValues {
  float lr, decay, scale;
  __device__ void read(const Rates& rates) {
    lr = static_cast<float>(*rates.lr);
    decay = rates.weight_decay == nullptr ? 0.0f : static_cast<float>(*rates.weight_decay);
    scale = static_cast<float>(*rates.scale);
  }
};

template <class Master, class First, class Second>
struct Adam {
  static constexpr int kCount = kFour, kAtOnce = 2;
  struct Factors {
    RateValues rates;
    float correction1, correction2;
  };
  struct Values {
    Four g, m, v, w;
  };
  Master master;
  const float* grad;
  First* exp_avg;
  Second* exp_avg_sq;
  Rates rates;
  const double* step;
  double beta1, beta2;
  float b1, rest1, b2, rest2, eps;

  bool is_aligned() const {
    return master.is_aligned() && aligned<kFour>(grad) && aligned<kFour>(exp_avg) &&
           aligned<kFour>(exp_avg_sq);
  }
  __device__ void prepare(Factors& f) const {
    if (threadIdx.x == 0) f.rates.read(rates);
    if (threadIdx.x == kWarp) f.correction1 = static_cast<float>(1 - pow(beta1, *step));
    if (threadIdx.x == 2 * kWarp) f.correction2 = static_cast<float>(1 - pow(beta2, *step));
  }
  __device__ void read(const Span& span, Values& x) const {
    cuda::read(grad, span, x.g);
    cuda::read(exp_avg, span, x.m);
    cuda::read(exp_avg_sq, span, x.v);
    master.read(span, x.w);
  }
  __device__ void write(const Span& span, const Factors& f, Values& x) const {
#pragma unroll
    for (int k = 0; k < kFour; ++k) {
      const float g = x.g[k] * f.rates.scale;
      x.m[k] = fmaf(b1, x.m[k], rest1 * g);
      x.v[k] = fmaf(b2, x.v[k], rest2 * g * g);
      const float root = sqrtf(x.v[k] / f.correction2) + eps;
      const float update = fmaf(f.rates.decay, x.w[k], x.m[k] / f.correction1 / root);
      x.w[k] = fmaf(-f.rates.lr, update, x.w[k]);
    }
    cuda::write(exp_avg, span, x.m);
    cuda::write(exp_avg_sq, span, x.v);
    master.write(span, x.w);
  }
};

template <class Master>
struct Sgd {
  static constexpr int kCount = kFour, kAtOnce = 2;
  struct Factors {
    RateValues rates;
    bool first;
  };
  struct Values {
    Four g, b, w;
  };
  Master master;
  const float* grad;
  float* buffer;  // null without momentum
  Rates rates;
  const double* step;
  float momentum;

  bool is_aligned() const {
    return master.is_aligned() && aligned<kFour>(grad) && aligned<kFour>(buffer);
  }
  __device__ void prepare(Factors& f) const {
    if (threadIdx.x != 0) return;
    f.rates.read(rates);
    f.first = *step == 1;
  }
  __device__ void read(const Span& span, Values& x) const {
    cuda::read(grad, span, x.g);
    if (buffer != nullptr) cuda::read(buffer, span, x.b);
    master.read(span, x.w);
  }
  __device__ void write(const Span& span, const Factors& f, Values& x) const {
#pragma unroll
    for (int k = 0; k < kFour; ++k) {
      x.g[k] = fmaf(x.g[k], f.rates.scale, f.rates.decay * x.w[k]);
      if (buffer != nullptr && !f.first) x.g[k] = fmaf(momentum, x.b[k], x.g[k]);
      x.w[k] = fmaf(-f.rates.lr, x.g[k], x.w[k]);
    }
    if (buffer != nullptr) cuda::write(buffer, span, x.g);
    master.write(span, x.w);
  }
};

// +1, -1, 0, or NaN.
__device__ inline float sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : x == 0 ? 0.0f : x; }

template <class Master>
struct Lion {
  static constexpr int kCount = kFour, kAtOnce = 2;
  using Factors = RateValues;
  struct Values {
    Four g, m, w;
  };
  Master master;
  const float* grad;
  float* exp_avg;
  Rates rates;
  float b1, rest1, b2, rest2;

  bool is_aligned() const {
    return master.is_aligned() && aligned<kFour>(grad) && aligned<kFour>(exp_avg);
  }
  __device__ void prepare(Factors& f) const {
    if (threadIdx.x == 0) f.read(rates);
  }
  __device__ void read(const Span& span, Values& x) const {
    cuda::read(grad, span, x.g);
    cuda::read(exp_avg, span, x.m);
    master.read(span, x.w);
  }
  __device__ void write(const Span& span, const Factors& f, Values& x) const {
#pragma unroll
    for (int k = 0; k < kFour; ++k) {
      const float g = x.g[k] * f.scale;
      const float update = fmaf(f.decay, x.w[k], sign(fmaf(b1, x.m[k], rest1 * g)));
      x.w[k] = fmaf(-f.lr, update, x.w[k]);
      x.m[k] = fmaf(b2, x.m[k], rest2 * g);
    }
    cuda::write(exp_avg, span, x.m);
    master.write(span, x.w);
  }
};

__global__ void __launch_bounds__(kThreads)
    norm_and_scale(const double* partials, int64_t count, const double* divisor, double max_norm,
                   double* norm, double* scale) {
  const double squares = ordered_sum(count, [&](int64_t i) { return partials[i]; });
  if (threadIdx.x != 0) return;
  const double root = sqrt(squares) / *divisor;
  const double clip = max_norm > 0 ? max_norm / (root + 1e-6) : 1;
  *norm = root;
  *scale = 1 / *divisor * (clip < 1 ? clip : 1);
}

}  // namespace

void grad_scale(const GradScaleArgs& args, Stream& stream) {
  check(args);
  launch("grad_scale", norm_and_scale, Grid{dim3(1)}, stream, scalar(args.partials),
         args.partials.elements(), scalar(args.divisor), args.max_norm,
         static_cast<double*>(args.norm.address()), static_cast<double*>(args.scale.address()));
}

void adam(const AdamArgs& args, Stream& stream) {
  check(args);
  const float* grad = floats("adam", args.grad);
  for_master("adam", args.parameter, [&](auto master) {
    for_moment("adam", args.exp_avg, [&](auto* m) {
      for_moment("adam", args.exp_avg_sq, [&](auto* v) {
        const Adam<decltype(master), std::remove_pointer_t<decltype(m)>,
                   std::remove_pointer_t<decltype(v)>>
            body{.master = master,
                 .grad = grad,
                 .exp_avg = m,
                 .exp_avg_sq = v,
                 .rates = rates_of(args),
                 .step = scalar(args.step),
                 .beta1 = args.beta1,
                 .beta2 = args.beta2,
                 .b1 = rounded(args.beta1),
                 .rest1 = rounded(1 - args.beta1),
                 .b2 = rounded(args.beta2),
                 .rest2 = rounded(1 - args.beta2),
                 .eps = rounded(args.eps)};
        run("adam", args.grad, body, stream);
      });
    });
  });
}

void sgd(const SgdArgs& args, Stream& stream) {
  check(args);
  const float* grad = floats("sgd", args.grad);
  for_master("sgd", args.parameter, [&](auto master) {
    const Sgd<decltype(master)> body{.master = master,
                                     .grad = grad,
                                     .buffer = floats("sgd", args.buffer),
                                     .rates = rates_of(args),
                                     .step = scalar(args.step),
                                     .momentum = rounded(args.momentum)};
    run("sgd", args.grad, body, stream);
  });
}

void lion(const LionArgs& args, Stream& stream) {
  check(args);
  const float* grad = floats("lion", args.grad);
  for_master("lion", args.parameter, [&](auto master) {
    const Lion<decltype(master)> body{.master = master,
                                      .grad = grad,
                                      .exp_avg = floats("lion", args.exp_avg),
                                      .rates = rates_of(args),
                                      .b1 = rounded(args.beta1),
                                      .rest1 = rounded(1 - args.beta1),
                                      .b2 = rounded(args.beta2),
                                      .rest2 = rounded(1 - args.beta2)};
    run("lion", args.grad, body, stream);
  });
}

}  // namespace megatron::kernels::cuda
