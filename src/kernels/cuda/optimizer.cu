#include <cmath>
#include <type_traits>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/optimizer_bodies.h"
#include "kernels/cuda/ordered_sum.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/tensor_rows.h"
#include "kernels/cuda/together.h"
#include "kernels/table.h"

namespace megatron::kernels::cuda {
namespace {

// The f32 master weight of a parameter: the parameter itself, or its bf16 value and the remainder.
struct PlainMaster {
  float* value;

  explicit PlainMaster(const MasterWeight& weight)
      : value(static_cast<float*>(weight.value.address())) {}
  bool is_aligned() const { return aligned<kFour>(value); }
  __device__ void read(const Span& span, Four& w) const { cuda::read(value, span, w); }
  __device__ void write(const Span& span, const Four& w) const { cuda::write(value, span, w); }
};

struct SplitMaster {
  uint16_t* value;  // bits of the bf16
  int16_t* remainder;

  explicit SplitMaster(const MasterWeight& weight)
      : value(static_cast<uint16_t*>(weight.value.address())),
        remainder(static_cast<int16_t*>(weight.remainder.address())) {}
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
  // The remainder is the low half of the master weight; the value is rounded and takes the carry.
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

// Learning rate and weight decay of a tensor. weight_decay may be null: no decay.
struct Rates {
  const double *lr, *weight_decay;

  template <class Args>
  explicit Rates(const Args& args)
      : lr(scalar(args.lr)), weight_decay(args.decay ? scalar(args.weight_decay) : nullptr) {}
};
struct RateValues {
  float lr, decay;
  __device__ void read(const Rates& rates) {
    lr = static_cast<float>(*rates.lr);
    decay = rates.weight_decay == nullptr ? 0.0f : static_cast<float>(*rates.weight_decay);
  }
};

template <class Master, class First, class Second>
struct Adam {
  static constexpr bool kFirstCoded = std::is_same_v<First, MomentCode>,
                        kSecondCoded = std::is_same_v<Second, MomentCode>,
                        kCoded = kFirstCoded || kSecondCoded;
  // Two groups at a time of moments that are codes need more registers than there are.
  static constexpr int kCount = kFour, kUnroll = kCoded ? 1 : 2;
  struct Factors {
    RateValues rates;
    float scale, correction1, correction2;
    MomentDither dither;
  };
  struct Values {
    Four g, m, v, w;
  };
  struct Tensors {
    Master master;
    const float* grad;
    First* exp_avg;
    Second* exp_avg_sq;
    Rates rates;
    float eps;

    explicit Tensors(const AdamArgs& args)
        : master(args.parameter),
          grad(floats("adam", args.grad)),
          exp_avg(static_cast<First*>(args.exp_avg.address())),
          exp_avg_sq(static_cast<Second*>(args.exp_avg_sq.address())),
          rates(args),
          eps(rounded(args.eps)) {}
    bool is_aligned() const {
      return master.is_aligned() && aligned<kFour>(grad) && aligned<kFour>(exp_avg) &&
             aligned<kFour>(exp_avg_sq);
    }
  };
  Tensors at;
  const double *step, *scale;
  double beta1, beta2;
  float b1, rest1, b2, rest2;

  explicit Adam(const AdamArgs& args)
      : at(args),
        step(scalar(args.step)),
        scale(scalar(args.scale)),
        beta1(args.beta1),
        beta2(args.beta2),
        b1(rounded(args.beta1)),
        rest1(rounded(1 - args.beta1)),
        b2(rounded(args.beta2)),
        rest2(rounded(1 - args.beta2)) {}

  __device__ void prepare(Factors& f) const {
    if (threadIdx.x == 0) f.scale = static_cast<float>(*scale);
    if (threadIdx.x == kWarp) f.correction1 = static_cast<float>(1 - pow(beta1, *step));
    if (threadIdx.x == 2 * kWarp) f.correction2 = static_cast<float>(1 - pow(beta2, *step));
    if (threadIdx.x == 3 * kWarp) f.dither = MomentDither::of(*step);
  }
  __device__ void complete(Factors& f) const { f.rates.read(at.rates); }
  __device__ void read(const Span& span, Values& x) const {
    cuda::read(at.grad, span, x.g);
    cuda::read(at.exp_avg, span, x.m);
    cuda::read(at.exp_avg_sq, span, x.v);
    at.master.read(span, x.w);
  }
  // Codes have the CPU's bits, which are those without fma.
  __device__ void average(float& m, float& v, float g) const {
    if constexpr (kSecondCoded) {
      const float root = root_of(static_cast<unsigned>(v));
      v = __fmul_rn(root, root);
    }
    if constexpr (kFirstCoded) m = __fmul_rn(ratio_of(static_cast<unsigned>(m)), sqrtf(v));
    if constexpr (kCoded) {
      m = __fadd_rn(__fmul_rn(b1, m), __fmul_rn(rest1, g));
      v = __fadd_rn(__fmul_rn(b2, v), __fmul_rn(__fmul_rn(rest2, g), g));
    } else {
      m = fmaf(b1, m, rest1 * g);
      v = fmaf(b2, v, rest2 * g * g);
    }
  }
  __device__ void encode(float& m, float& v, MomentDither dither) const {
    if constexpr (kSecondCoded) v = static_cast<float>(root_code(sqrtf(v), dither));
    if constexpr (kFirstCoded) {
      float root = 0;
      if constexpr (kSecondCoded) {
        root = root_of(static_cast<unsigned>(v));
      } else {
        root = sqrtf(to_float(from_float<Second>(v)));
      }
      m = static_cast<float>(ratio_code(m, root, dither));
    }
  }
  __device__ void write(const Span& span, const Factors& f, Values& x) const {
#pragma unroll
    for (int k = 0; k < kFour; ++k) {
      const float g = x.g[k] * f.scale;
      average(x.m[k], x.v[k], g);
      const float root = sqrtf(x.v[k] / f.correction2) + at.eps;
      const float update = fmaf(f.rates.decay, x.w[k], x.m[k] / f.correction1 / root);
      x.w[k] = fmaf(-f.rates.lr, update, x.w[k]);
      encode(x.m[k], x.v[k], f.dither);
    }
    cuda::write(at.exp_avg, span, x.m);
    cuda::write(at.exp_avg_sq, span, x.v);
    at.master.write(span, x.w);
  }
};

// A tensor's data in SGD and Lion.
template <class Master>
struct TensorsOfOneMoment {
  Master master;
  const float* grad;
  float* moment;  // SGD: momentum buffer, or null without momentum
  Rates rates;

  explicit TensorsOfOneMoment(const SgdArgs& args) : TensorsOfOneMoment("sgd", args, args.buffer) {}
  explicit TensorsOfOneMoment(const LionArgs& args)
      : TensorsOfOneMoment("lion", args, args.exp_avg) {}
  bool is_aligned() const {
    return master.is_aligned() && aligned<kFour>(grad) && aligned<kFour>(moment);
  }

 private:
  template <class Args>
  TensorsOfOneMoment(const char* kernel, const Args& args, const Tensor& of_moment)
      : master(args.parameter),
        grad(floats(kernel, args.grad)),
        moment(floats(kernel, of_moment)),
        rates(args) {}
};

template <class Master>
struct Sgd {
  static constexpr int kCount = kFour, kUnroll = 2;
  struct Factors {
    RateValues rates;
    float scale;
    bool first;
  };
  struct Values {
    Four g, b, w;
  };
  using Tensors = TensorsOfOneMoment<Master>;
  Tensors at;
  const double *step, *scale;
  float momentum;

  explicit Sgd(const SgdArgs& args)
      : at(args),
        step(scalar(args.step)),
        scale(scalar(args.scale)),
        momentum(rounded(args.momentum)) {}

  __device__ void prepare(Factors& f) const {
    if (threadIdx.x != 0) return;
    f.scale = static_cast<float>(*scale);
    f.first = *step == 1;
  }
  __device__ void complete(Factors& f) const { f.rates.read(at.rates); }
  __device__ void read(const Span& span, Values& x) const {
    cuda::read(at.grad, span, x.g);
    if (at.moment != nullptr) cuda::read(at.moment, span, x.b);
    at.master.read(span, x.w);
  }
  __device__ void write(const Span& span, const Factors& f, Values& x) const {
#pragma unroll
    for (int k = 0; k < kFour; ++k) {
      x.g[k] = fmaf(x.g[k], f.scale, f.rates.decay * x.w[k]);
      if (at.moment != nullptr && !f.first) x.g[k] = fmaf(momentum, x.b[k], x.g[k]);
      x.w[k] = fmaf(-f.rates.lr, x.g[k], x.w[k]);
    }
    if (at.moment != nullptr) cuda::write(at.moment, span, x.g);
    at.master.write(span, x.w);
  }
};

// +1, -1, 0, or NaN.
__device__ inline float sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : x == 0 ? 0.0f : x; }

template <class Master>
struct Lion {
  static constexpr int kCount = kFour, kUnroll = 2;
  struct Factors {
    RateValues rates;
    float scale;
  };
  struct Values {
    Four g, m, w;
  };
  using Tensors = TensorsOfOneMoment<Master>;
  Tensors at;
  const double* scale;
  float b1, rest1, b2, rest2;

  explicit Lion(const LionArgs& args)
      : at(args),
        scale(scalar(args.scale)),
        b1(rounded(args.beta1)),
        rest1(rounded(1 - args.beta1)),
        b2(rounded(args.beta2)),
        rest2(rounded(1 - args.beta2)) {}

  __device__ void prepare(Factors& f) const {
    if (threadIdx.x == 0) f.scale = static_cast<float>(*scale);
  }
  __device__ void complete(Factors& f) const { f.rates.read(at.rates); }
  __device__ void read(const Span& span, Values& x) const {
    cuda::read(at.grad, span, x.g);
    cuda::read(at.moment, span, x.m);
    at.master.read(span, x.w);
  }
  __device__ void write(const Span& span, const Factors& f, Values& x) const {
#pragma unroll
    for (int k = 0; k < kFour; ++k) {
      const float g = x.g[k] * f.scale;
      const float update = fmaf(f.rates.decay, x.w[k], sign(fmaf(b1, x.m[k], rest1 * g)));
      x.w[k] = fmaf(-f.rates.lr, update, x.w[k]);
      x.m[k] = fmaf(b2, x.m[k], rest2 * g);
    }
    cuda::write(at.moment, span, x.m);
    at.master.write(span, x.w);
  }
};

// Calls f with the body for the arguments' types.
template <class F>
auto for_master(const char* kernel, const MasterWeight& weight, F&& f) {
  switch (weight.value.dtype()) {
    case DType::f32: return f(PlainMaster(weight));
    case DType::bf16: return f(SplitMaster(weight));
    default: refuse_type(kernel, weight.value.dtype());
  }
}
template <class F>
auto for_adam_moment(const Tensor& moment, F&& f) {
  if (moment.dtype() == DType::u8) return f(static_cast<MomentCode*>(moment.address()));
  return for_moment("adam", moment, f);
}
template <class F>
auto for_body(const AdamArgs& args, F&& f) {
  return for_master("adam", args.parameter, [&](auto master) {
    return for_adam_moment(args.exp_avg, [&](auto* m) {
      return for_adam_moment(args.exp_avg_sq, [&](auto* v) {
        return f(Adam<decltype(master), std::remove_pointer_t<decltype(m)>,
                      std::remove_pointer_t<decltype(v)>>(args));
      });
    });
  });
}
template <class F>
auto for_body(const SgdArgs& args, F&& f) {
  return for_master("sgd", args.parameter,
                    [&](auto master) { return f(Sgd<decltype(master)>(args)); });
}
template <class F>
auto for_body(const LionArgs& args, F&& f) {
  return for_master("lion", args.parameter,
                    [&](auto master) { return f(Lion<decltype(master)>(args)); });
}

template <class Args>
void update(const char* name, const Args& args, Stream& stream) {
  for_body(args,
           [&](const auto& body) { run_over_tensor(name, body, args.grad.elements(), stream); });
}

template <class Args>
std::unique_ptr<Together> updates(const char* name, std::span<const Args> calls,
                                  const Tensor& table) {
  return for_body(calls[0], [&](const auto& common) -> std::unique_ptr<Together> {
    using Body = std::remove_cvref_t<decltype(common)>;
    RowList<ElementRow<Body>> rows;
    for (const Args& call : calls) {
      check(call);
      rows.add({typename Body::Tensors(call), call.grad.elements()},
               units_of<Body>(call.grad.elements()));
    }
    return std::make_unique<ElementsTogether<Body>>(name, common, rows, table);
  });
}

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
  launch("grad_scale", norm_and_scale, Grid{dim3(1)}, stream, scalar(args.partials),
         args.partials.elements(), scalar(args.divisor), args.max_norm,
         static_cast<double*>(args.norm.address()), static_cast<double*>(args.scale.address()));
}

void adam(const AdamArgs& args, Stream& stream) { update("adam", args, stream); }
void sgd(const SgdArgs& args, Stream& stream) { update("sgd", args, stream); }
void lion(const LionArgs& args, Stream& stream) { update("lion", args, stream); }

std::unique_ptr<Together> adam_together(std::span<const AdamArgs> calls, const Tensor& table) {
  return updates("adam", calls, table);
}
std::unique_ptr<Together> sgd_together(std::span<const SgdArgs> calls, const Tensor& table) {
  return updates("sgd", calls, table);
}
std::unique_ptr<Together> lion_together(std::span<const LionArgs> calls, const Tensor& table) {
  return updates("lion", calls, table);
}

}  // namespace megatron::kernels::cuda
