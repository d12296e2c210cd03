#include "kernels/cuda/dynamic_shared.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/logits.h"
#include "kernels/table.h"

namespace megatron::kernels::cuda {

int64_t logits_memory(const Stream& stream) {
  constexpr int kOthers = 1024;  // bytes of shared memory reserved for other purposes than the row
  int bytes = 0;
  megatron::cuda::check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                               stream.device().index),
                        "cudaDeviceGetAttribute");
  return bytes - kOthers;
}

namespace {

// T: type of logits. D: type of dlogits. One block per row.
template <class T, class D>
struct Losses {
  const T* logits;
  D* dlogits;  // may be null
  const int32_t* labels;
  const float* weights;
  float *loss, *hits;  // hits: may be null
  int64_t width, logits_apart, dlogits_apart, keeps;
  bool aligned;
};

template <class T, class D>
__global__ void __launch_bounds__(kLogitsThreads) loss_of_row(Losses<T, D> a) {
  constexpr int N = kChunk<T>;
  __shared__ float partial[kWarp];
  const int64_t t = blockIdx.x;
  D* dlogits = a.dlogits == nullptr ? nullptr : a.dlogits + t * a.dlogits_apart;
  const float weight = a.weights[t];
  if (weight == 0) {
    if (threadIdx.x == 0) {
      a.loss[t] = 0;
      if (a.hits != nullptr) a.hits[t] = 0;
    }
    if (dlogits != nullptr) clear_row<N>(dlogits, a.width, a.aligned);
    return;
  }
  const LogitsRow<T> row{a.logits + t * a.logits_apart,
                         reinterpret_cast<Vector<T, N>*>(dynamic_shared()), a.width, a.keeps,
                         a.aligned};
  const int64_t label = a.labels[t];
  const bool known = label >= 0 && label < a.width;
  const float of_label = known ? to_float(row.x[label]) : NAN;
  const SoftmaxSum all = row.sum(partial);
  if (threadIdx.x == 0) {
    a.loss[t] = logf(all.sum) + (all.most - of_label);
    if (a.hits != nullptr) a.hits[t] = of_label >= all.most ? 1.0f : 0.0f;
  }
  if (dlogits == nullptr) return;
  const float share = 1.0f / all.sum, scale = share * weight;
  row.template each<false>([&](const Vector<T, N>& values, int64_t i, int64_t count) {
    Vector<D, N> out;
    const auto e = [&](int j) { return exp_approx(to_float(values.at[j]) - all.most); };
#pragma unroll
    for (int j = 0; j < N; ++j) out.at[j] = from_float<D>(e(j) * scale);
    if (label >= i && label < i + N) {
#pragma unroll
      for (int j = 0; j < N; ++j)
        if (i + j == label) out.at[j] = from_float<D>(weight * fmaf(e(j), share, -1.0f));
    }
    store_logits(dlogits + i, out, count, a.aligned);
  });
}

template <class T, class D>
void losses(const CrossEntropyArgs& args, Stream& stream) {
  const int64_t rows = args.logits.size(0), width = args.logits.size(1);
  const int64_t chunks = ceil_div(width, kChunk<T>), memory = logits_memory(stream);
  Losses<T, D> a{.logits = address_of<T>(args.logits),
                 .dlogits = address_of<D>(args.dlogits),
                 .labels = address_of<int32_t>(args.labels),
                 .weights = address_of<float>(args.weights),
                 .loss = address_of<float>(args.loss),
                 .hits = address_of<float>(args.hits),
                 .width = width,
                 .logits_apart = rows_apart(args.logits),
                 .dlogits_apart = rows_apart(args.dlogits),
                 .keeps = args.dlogits.defined() ? std::min(chunks, memory / kVectorBytes) : 0,
                 .aligned = false};
  a.aligned = a.logits_apart % kChunk<T> == 0 && a.dlogits_apart % kChunk<T> == 0 &&
              are_aligned({a.logits, a.dlogits});
  const Grid grid{.blocks = dim3(static_cast<unsigned>(rows)),
                  .threads = dim3(logits_threads(chunks)),
                  .dynamic_shared = static_cast<size_t>(a.keeps * kVectorBytes)};
  allow_dynamic_shared(loss_of_row<T, D>, static_cast<size_t>(memory));
  launch("cross_entropy", loss_of_row<T, D>, grid, stream, a);
}

}  // namespace

// A label outside of the vocabulary, which the contract leaves undefined, gives loss NaN.
void cross_entropy(const CrossEntropyArgs& args, Stream& stream) {
  for_storage_type("cross_entropy", args.logits.dtype(), [&](auto type) {
    using T = decltype(type);
    if (args.logits.size(0) == 0) return;
    if (!args.dlogits.defined()) return losses<T, T>(args, stream);
    for_storage_type("cross_entropy", args.dlogits.dtype(),
                     [&](auto gradient) { losses<T, decltype(gradient)>(args, stream); });
  });
}

}  // namespace megatron::kernels::cuda
