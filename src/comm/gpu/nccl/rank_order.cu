#include <cstdint>
#include <type_traits>

#include "comm/gpu/nccl/rank_order.h"
#include "kernels/cuda/elements.h"

namespace megatron::comm {
namespace {

using namespace kernels::cuda;

template <bool kSum, class A>
__device__ A combined(A a, A x) {
  if constexpr (kSum) return a + x;
  return x > a || x != x ? x : a;
}

// 16 and 32 bits: sums in f32, several adjacent elements per thread.
template <class T, bool kSum>
struct Floats {
  static constexpr int kCount = kNeighbours<T>, kUnroll = 2;
  using Factors = NoFactors;
  struct Values {
    float x[kCount];
  };
  const T* sources;
  int64_t stride;
  int ranks;
  T* out;

  __device__ void prepare(Factors&) const {}
  __device__ void read(const Span& span, Values& v) const {
    kernels::cuda::read(sources, span, v.x);
    for (int r = 1; r < ranks; ++r) {
      float x[kCount];
      kernels::cuda::read(sources + r * stride, span, x);
#pragma unroll
      for (int k = 0; k < kCount; ++k) v.x[k] = combined<kSum>(v.x[k], x[k]);
    }
  }
  __device__ void write(const Span& span, const Factors&, const Values& v) const {
    kernels::cuda::write(out, span, v.x);
  }
};

template <class T, bool kSum>
void run_floats(const RankOrder& w, Stream& stream) {
  const auto* const sources = static_cast<const T*>(w.sources);
  auto* const out = static_cast<T*>(w.out);
  constexpr int kCount = Floats<T, kSum>::kCount;
  const bool vectors = aligned<kCount>(sources) && aligned<kCount>(out) && w.stride % kCount == 0;
  run_over_elements("reduce in rank order", w.count, vectors,
                    Floats<T, kSum>{sources, w.stride, w.ranks, out}, stream);
}

// f64, and integers through 64-bit ones: one element per thread.
template <class T, class A, bool kSum>
__global__ void __launch_bounds__(kThreads)
    reduce_one_by_one(const T* sources, int64_t stride, int ranks, T* out, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  A sum = static_cast<A>(sources[i]);
  for (int r = 1; r < ranks; ++r)
    sum = combined<kSum>(sum, static_cast<A>(sources[r * stride + i]));
  out[i] = static_cast<T>(sum);
}

template <class T, bool kSum>
void run_one_by_one(const RankOrder& w, Stream& stream) {
  using A = std::conditional_t<std::is_same_v<T, double>, double, int64_t>;
  if (w.count == 0) return;
  launch("reduce in rank order", reduce_one_by_one<T, A, kSum>, grid_for(w.count), stream,
         static_cast<const T*>(w.sources), w.stride, w.ranks, static_cast<T*>(w.out), w.count);
}

template <bool kSum>
void run(const RankOrder& w, Stream& stream) {
  switch (w.type) {
    case DType::f32: return run_floats<float, kSum>(w, stream);
    case DType::bf16: return run_floats<Bf16, kSum>(w, stream);
    case DType::f16: return run_floats<F16, kSum>(w, stream);
    case DType::f64: return run_one_by_one<double, kSum>(w, stream);
    case DType::i16: return run_one_by_one<int16_t, kSum>(w, stream);
    case DType::u16: return run_one_by_one<uint16_t, kSum>(w, stream);
    default: refuse_type("reduce in rank order", w.type);
  }
}

}  // namespace

void reduce_in_rank_order(const RankOrder& work, Stream& stream) {
  if (work.op == Reduce::sum) return run<true>(work, stream);
  run<false>(work, stream);
}

}  // namespace megatron::comm
