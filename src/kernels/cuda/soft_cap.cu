#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"

namespace megatron::kernels::cuda {
namespace {

template <class T>
struct SoftCap {
  static constexpr int kCount = kNeighbours<T>, kAtOnce = 16 / kCount;
  using Factors = NoFactors;
  struct Values {
    float x[kCount];
  };
  float cap;
  const T* x;
  T* out;

  __device__ void prepare(Factors&) const {}
  __device__ void read(const Span& span, Values& v) const { cuda::read(x, span, v.x); }
  __device__ void write(const Span& span, const Factors&, Values& v) const {
    const float inverse = 1.0f / cap;
#pragma unroll
    for (int k = 0; k < kCount; ++k) v.x[k] = cap * tanhf(v.x[k] * inverse);
    cuda::write(out, span, v.x);
  }
};

template <class T>
struct SoftCapBackward {
  static constexpr int kCount = kNeighbours<T, float>, kAtOnce = 8 / kCount;
  using Factors = NoFactors;
  struct Values {
    float out[kCount], dout[kCount];
  };
  float cap;
  const float* out;
  const T* dout;
  T* dx;

  __device__ void prepare(Factors&) const {}
  __device__ void read(const Span& span, Values& v) const {
    cuda::read(out, span, v.out);
    cuda::read(dout, span, v.dout);
  }
  __device__ void write(const Span& span, const Factors&, Values& v) const {
    const float inverse = 1.0f / cap;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float tanh = v.out[k] * inverse;
      v.dout[k] *= fmaf(-tanh, tanh, 1.0f);
    }
    cuda::write(dx, span, v.dout);
  }
};

}  // namespace

void soft_cap(const SoftCapArgs& args, Stream& stream) {
  check(args);
  for_storage_type("soft_cap", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    using Body = SoftCap<T>;
    const Body body{static_cast<float>(args.cap), static_cast<const T*>(args.x.address()),
                    static_cast<T*>(args.out.address())};
    const bool vectors = aligned<Body::kCount>(body.x) && aligned<Body::kCount>(body.out);
    run_over_elements("soft_cap", args.x.elements(), vectors, body, stream);
  });
}

void soft_cap_backward(const SoftCapBackwardArgs& args, Stream& stream) {
  check(args);
  for_storage_type("soft_cap_backward", args.dout.dtype(), [&](auto type) {
    using T = decltype(type);
    using Body = SoftCapBackward<T>;
    const Body body{static_cast<float>(args.cap), static_cast<const float*>(args.out.address()),
                    static_cast<const T*>(args.dout.address()), static_cast<T*>(args.dx.address())};
    const bool vectors = aligned<Body::kCount>(body.out) && aligned<Body::kCount>(body.dout) &&
                         aligned<Body::kCount>(body.dx);
    run_over_elements("soft_cap_backward", args.dout.elements(), vectors, body, stream);
  });
}

}  // namespace megatron::kernels::cuda
