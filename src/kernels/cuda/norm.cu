#include "kernels/cuda/chunk.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.h"
#include "kernels/table.h"

namespace megatron::kernels::cuda {
namespace {

// Chunks of a row that each thread keeps in registers. The rest of longer rows is read again.
constexpr int kKept = 4;
constexpr int kMaxThreads = 512;

template <class T>
struct Rows {
  const T *x, *residual, *weight, *bias;  // residual, bias: may be null
  T *sum, *normed;                        // sum: null if x is the sum
  float *mean, *rstd;
  int width;
  float eps, offset;  // offset: added to the weight
  bool whole;
};

template <class T>
struct Row {
  static constexpr int N = kChunk<T>;
  using Values = Vector<T, N>;

  __device__ Row(const Rows<T>& rows_, int64_t index)
      : rows(rows_), at(index * rows_.width), step(static_cast<int>(blockDim.x) * N) {}

  __device__ int element(int round) const {
    return round * step + static_cast<int>(threadIdx.x) * N;
  }
  __device__ Values load(const T* p, int i) const {
    return load_chunk<N>(p + i, rows.width - i, rows.whole);
  }
  // Adds x + residual, rounds to the storage type and stores the sum.
  __device__ Values add(const Values& x, const Values& residual, int i) const {
    Values sum = x;
    if (rows.residual != nullptr) {
#pragma unroll
      for (int j = 0; j < N; ++j)
        sum.at[j] = from_float<T>(to_float(x.at[j]) + to_float(residual.at[j]));
    }
    if (rows.sum != nullptr) store_chunk(rows.sum + at + i, sum, rows.width - i, rows.whole);
    return sum;
  }
  // Sum of f(element) over the thread's elements, kept ones first.
  template <class F>
  __device__ float terms(const Values& values, int i, F f) const {
    float total = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) total += i + j < rows.width ? f(to_float(values.at[j])) : 0.0f;
    return total;
  }
  __device__ void norm(const Values& sum, int i, float mean, float rstd) const {
    const Values weight = load(rows.weight, i);
    Values out, bias{};
    if (rows.bias != nullptr) bias = load(rows.bias, i);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float scaled = (to_float(sum.at[j]) - mean) * rstd;
      const float factor = to_float(weight.at[j]) + rows.offset;
      out.at[j] = from_float<T>(rows.bias != nullptr ? fmaf(scaled, factor, to_float(bias.at[j]))
                                                     : scaled * factor);
    }
    store_chunk(rows.normed + at + i, out, rows.width - i, rows.whole);
  }

  const Rows<T>& rows;
  const int64_t at;
  const int step;
};

// One block per row.
template <class T, NormKind kKind>
__global__ void __launch_bounds__(kMaxThreads) add_and_norm(Rows<T> rows) {
  constexpr bool kLayer = kKind == NormKind::layer;
  __shared__ float partial[kWarp];
  const Row<T> row(rows, blockIdx.x);
  using Values = typename Row<T>::Values;
  const T* x = rows.x + row.at;
  const T* residual = rows.residual == nullptr ? nullptr : rows.residual + row.at;
  const T* stored = residual == nullptr ? x : rows.sum + row.at;
  // Squares are rounded before they are added, as the definition demands.
  const auto square = [](float v) { return __fmul_rn(v, v); };
  const auto first_terms = [&](const Values& values, int i) {
    return kLayer ? row.terms(values, i, [](float v) { return v; }) : row.terms(values, i, square);
  };

  Values sum[kKept], second[kKept] = {};
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    sum[k] = row.load(x, row.element(k));
    if (residual != nullptr) second[k] = row.load(residual, row.element(k));
  }
  float total = 0;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    sum[k] = row.add(sum[k], second[k], row.element(k));
    total += first_terms(sum[k], row.element(k));
  }
  for (int i = row.element(kKept); i < rows.width; i += row.step) {
    Values other{};
    if (residual != nullptr) other = row.load(residual, i);
    total += first_terms(row.add(row.load(x, i), other, i), i);
  }
  total = block_sum(total, partial);

  float mean = 0;
  const auto width = static_cast<float>(rows.width);
  if constexpr (kLayer) {
    mean = total / width;
    const auto deviation = [mean](float v) { return __fmul_rn(v - mean, v - mean); };
    total = 0;
#pragma unroll
    for (int k = 0; k < kKept; ++k) total += row.terms(sum[k], row.element(k), deviation);
    for (int i = row.element(kKept); i < rows.width; i += row.step)
      total += row.terms(row.load(stored, i), i, deviation);
    total = block_sum(total, partial);
  }
  const float rstd = 1.0f / sqrtf(total / width + rows.eps);
  if (threadIdx.x == 0) {
    rows.rstd[blockIdx.x] = rstd;
    if constexpr (kLayer) rows.mean[blockIdx.x] = mean;
  }
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    if (row.element(k) < rows.width) row.norm(sum[k], row.element(k), mean, rstd);
  }
  for (int i = row.element(kKept); i < rows.width; i += row.step)
    row.norm(row.load(stored, i), i, mean, rstd);
}

template <NormKind kKind>
void forward(const char* kernel, const AddNormArgs& args, Stream& stream) {
  const int64_t count = args.x.size(0), width = args.x.size(1);
  for_storage_type(kernel, args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    if (count == 0 || width == 0) return;
    Rows<T> rows{.x = address_of<T>(args.x),
                 .residual = address_of<T>(args.residual),
                 .weight = address_of<T>(args.weight),
                 .bias = address_of<T>(args.bias),
                 .sum = address_of<T>(args.sum),
                 .normed = address_of<T>(args.normed),
                 .mean = address_of<float>(args.mean),
                 .rstd = address_of<float>(args.rstd),
                 .width = static_cast<int>(width),
                 .eps = static_cast<float>(args.eps),
                 .offset = static_cast<float>(args.weight_offset),
                 .whole = false};
    rows.whole = width % kChunk<T> == 0 && are_aligned({rows.x, rows.residual, rows.weight,
                                                        rows.bias, rows.sum, rows.normed});
    if (rows.sum == rows.x) rows.sum = nullptr;
    const int64_t threads = ceil_div(ceil_div(width, kChunk<T>), kKept);
    const Grid grid{.blocks = dim3(static_cast<unsigned>(count)),
                    .threads = dim3(static_cast<unsigned>(
                        std::min<int64_t>(kMaxThreads, ceil_div(threads, kWarp) * kWarp)))};
    launch(kernel, add_and_norm<T, kKind>, grid, stream, rows);
  });
}

}  // namespace

void add_rms_norm(const AddNormArgs& args, Stream& stream) {
  forward<NormKind::rms>("add_rms_norm", args, stream);
}
void add_layer_norm(const AddNormArgs& args, Stream& stream) {
  forward<NormKind::layer>("add_layer_norm", args, stream);
}

}  // namespace megatron::kernels::cuda
