#include "kernels/cuda/elements.h"
#include "kernels/cuda/scale.h"

namespace megatron::kernels::cuda {
namespace {

// out = f(x) of each element; F: a function object of the device.
template <class T, class F>
struct Map {
  static constexpr int kCount = kNeighbours<T>, kAtOnce = 16 / kCount;
  using Factors = NoFactors;
  struct Values {
    float x[kCount];
  };
  F f;
  const T* x;
  T* out;

  __device__ void prepare(Factors&) const {}
  __device__ void read(const Span& span, Values& v) const { cuda::read(x, span, v.x); }
  __device__ void write(const Span& span, const Factors&, Values& v) const {
#pragma unroll
    for (int k = 0; k < kCount; ++k) v.x[k] = f(v.x[k]);
    cuda::write(out, span, v.x);
  }
};

struct Times {
  float factor;
  __device__ float operator()(float x) const { return x * factor; }
};
struct Capped {
  float cap, inverse;
  __device__ float operator()(float x) const { return cap * tanhf(x * inverse); }
};

template <class F>
void map(const char* kernel, const Tensor& x, const Tensor& out, const F& f, Stream& stream) {
  for_storage_type(kernel, x.dtype(), [&](auto type) {
    using T = decltype(type);
    const Map<T, F> body{f, static_cast<const T*>(x.address()), static_cast<T*>(out.address())};
    const bool vectors = aligned<Map<T, F>::kCount>(body.x) && aligned<Map<T, F>::kCount>(body.out);
    run_over_elements(kernel, x.elements(), vectors, body, stream);
  });
}

template <class T>
struct CapSlope {
  static constexpr int kCount = kNeighbours<T>, kAtOnce = 16 / kCount;
  using Factors = NoFactors;
  struct Values {
    float out[kCount], dout[kCount];
  };
  float inverse;
  const float* out;
  const T* dout;
  T* dx;

  __device__ void prepare(Factors&) const {}
  __device__ void read(const Span& span, Values& v) const {
    cuda::read(out, span, v.out);
    cuda::read(dout, span, v.dout);
  }
  __device__ void write(const Span& span, const Factors&, Values& v) const {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float t = v.out[k] * inverse;
      v.dout[k] *= 1.0f - t * t;
    }
    cuda::write(dx, span, v.dout);
  }
};

}  // namespace

void scale(const ScaleArgs& args, Stream& stream) {
  check(args);
  map("scale", args.x, args.out, Times{static_cast<float>(args.factor)}, stream);
}

void soft_cap(const SoftCapArgs& args, Stream& stream) {
  check(args);
  map("soft_cap", args.x, args.out,
      Capped{static_cast<float>(args.cap), static_cast<float>(1 / args.cap)}, stream);
}

void soft_cap_backward(const SoftCapBackwardArgs& args, Stream& stream) {
  check(args);
  for_storage_type("soft_cap_backward", args.dout.dtype(), [&](auto type) {
    using T = decltype(type);
    constexpr int kCount = CapSlope<T>::kCount;
    const CapSlope<T> body{
        static_cast<float>(1 / args.cap), static_cast<const float*>(args.out.address()),
        static_cast<const T*>(args.dout.address()), static_cast<T*>(args.dx.address())};
    const bool vectors =
        aligned<kCount>(body.out) && aligned<kCount>(body.dout) && aligned<kCount>(body.dx);
    run_over_elements("soft_cap_backward", args.dout.elements(), vectors, body, stream);
  });
}

}  // namespace megatron::kernels::cuda
