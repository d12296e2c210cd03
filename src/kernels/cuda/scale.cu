#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"

namespace megatron::kernels::cuda {
namespace {

template <class T>
struct Scale {
  static constexpr int kCount = kNeighbours<T>, kAtOnce = 16 / kCount;
  using Factors = NoFactors;
  struct Values {
    float x[kCount];
  };
  float factor;
  const T* x;
  T* out;

  __device__ void prepare(Factors&) const {}
  __device__ void read(const Span& span, Values& v) const { cuda::read(x, span, v.x); }
  __device__ void write(const Span& span, const Factors&, Values& v) const {
#pragma unroll
    for (int k = 0; k < kCount; ++k) v.x[k] *= factor;
    cuda::write(out, span, v.x);
  }
};

}  // namespace

void scale(const ScaleArgs& args, Stream& stream) {
  check(args);
  for_storage_type("scale", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const Scale<T> body{static_cast<float>(args.factor), static_cast<const T*>(args.x.address()),
                        static_cast<T*>(args.out.address())};
    const bool vectors = aligned<Scale<T>::kCount>(body.x) && aligned<Scale<T>::kCount>(body.out);
    run_over_elements("scale", args.x.elements(), vectors, body, stream);
  });
}

}  // namespace megatron::kernels::cuda
