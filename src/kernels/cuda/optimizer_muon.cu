#include <cmath>
#include <type_traits>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/optimizer_bodies.h"
#include "kernels/cuda/reduce.h"
#include "kernels/table.h"

namespace megatron::kernels::cuda {
namespace {

struct MuonMomentum {
  static constexpr int kCount = kFour, kUnroll = 4;
  struct Factors {
    float scale;
  };
  struct Values {
    Four g, m;
  };
  const float* grad;
  float *momentum, *direction;
  const double* scale;
  float mu, rest;
  bool nesterov;

  bool is_aligned() const {
    return aligned<kFour>(grad) && aligned<kFour>(momentum) && aligned<kFour>(direction);
  }
  __device__ void prepare(Factors& f) const {
    if (threadIdx.x == 0) f.scale = static_cast<float>(*scale);
  }
  __device__ void read(const Span& span, Values& x) const {
    cuda::read(grad, span, x.g);
    cuda::read(momentum, span, x.m);
  }
  __device__ void write(const Span& span, const Factors& f, Values& x) const {
#pragma unroll
    for (int k = 0; k < kFour; ++k) {
      const float g = __fmul_rn(x.g[k], f.scale);
      x.m[k] = fmaf(rest, g - x.m[k], x.m[k]);
      x.g[k] = nesterov ? fmaf(rest, g, mu * x.m[k]) : x.m[k];
    }
    cuda::write(momentum, span, x.m);
    cuda::write(direction, span, x.g);
  }
};

// Every block adds the partial sums in the same order: thread i takes i, i + kThreads, ..., and
// block_sum adds the threads' sums.
template <class Out>
struct UnitNorm {
  static constexpr int kCount = kFour, kUnroll = 4;
  struct Factors {
    double partial[kWarp];
    float factor;
  };
  struct Values {
    Four x;
  };
  const float* x;
  Out* out;
  const double* partials;
  int64_t count;
  double eps;

  bool is_aligned() const { return aligned<kFour>(x) && aligned<kFour>(out); }
  __device__ void prepare(Factors& f) const {
    double squares = 0;
    for (int64_t i = threadIdx.x; i < count; i += kThreads) squares += partials[i];
    squares = block_sum(squares, f.partial);
    if (threadIdx.x == 0) f.factor = static_cast<float>(1 / fmax(sqrt(squares), eps));
  }
  __device__ void read(const Span& span, Values& v) const { cuda::read(x, span, v.x); }
  __device__ void write(const Span& span, const Factors& f, Values& v) const {
#pragma unroll
    for (int k = 0; k < kFour; ++k) v.x[k] *= f.factor;
    cuda::write(out, span, v.x);
  }
};

template <class X, class Y, class Out>
struct WeightedSum {
  static constexpr int kCount = kNeighbours<X, Y, Out>, kUnroll = 16 / kCount;
  using Factors = NoFactors;
  struct Values {
    float x[kCount], y[kCount];
  };
  const X* x;
  const Y* y;
  Out* out;
  float a, b;

  bool is_aligned() const {
    return aligned<kCount>(x) && aligned<kCount>(y) && aligned<kCount>(out);
  }
  __device__ void prepare(Factors&) const {}
  __device__ void read(const Span& span, Values& v) const {
    cuda::read(x, span, v.x);
    cuda::read(y, span, v.y);
  }
  __device__ void write(const Span& span, const Factors&, Values& v) const {
#pragma unroll
    for (int k = 0; k < kCount; ++k) v.x[k] = fmaf(a, v.x[k], b * v.y[k]);
    cuda::write(out, span, v.x);
  }
};

}  // namespace

void muon_momentum(const MuonMomentumArgs& args, Stream& stream) {
  const MuonMomentum body{.grad = floats("muon_momentum", args.grad),
                          .momentum = floats("muon_momentum", args.momentum),
                          .direction = floats("muon_momentum", args.direction),
                          .scale = scalar(args.scale),
                          .mu = rounded(args.mu),
                          .rest = rounded(1 - args.mu),
                          .nesterov = args.nesterov};
  run("muon_momentum", args.grad, body, stream);
}

void unit_norm(const UnitNormArgs& args, Stream& stream) {
  const float* x = floats("unit_norm", args.x);
  for_moment("unit_norm", args.out, [&](auto* out) {
    const UnitNorm<std::remove_pointer_t<decltype(out)>> body{x, out, scalar(args.partials),
                                                              args.partials.elements(), args.eps};
    run("unit_norm", args.x, body, stream);
  });
}

void weighted_sum(const WeightedSumArgs& args, Stream& stream) {
  for_moment("weighted_sum", args.x, [&](auto* x) {
    for_moment("weighted_sum", args.y, [&](auto* y) {
      for_moment("weighted_sum", args.out, [&](auto* out) {
        const WeightedSum<std::remove_pointer_t<decltype(x)>, std::remove_pointer_t<decltype(y)>,
                          std::remove_pointer_t<decltype(out)>>
            body{x, y, out, rounded(args.x_weight), rounded(args.y_weight)};
        run("weighted_sum", args.x, body, stream);
      });
    });
  });
}

}  // namespace megatron::kernels::cuda
