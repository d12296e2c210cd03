#include "kernels/cuda/chunk.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/numbers.h"
#include "kernels/cuda/partial_rows.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda_scratch/scratch.h"

namespace megatron::kernels::cuda {
namespace {

constexpr int kRowsOfBlock = kThreads / kWarp;  // one warp per row

// Addresses of the rows [t,g,:] of a tensor [T,G,W].
template <class T>
struct Rows {
  T* data;
  int64_t token, head;
  __device__ T* at(int64_t row, int heads) const {
    return data + row / heads * token + row % heads * head;
  }
};
template <class T>
Rows<T> rows_of(const Tensor& t) {
  if (!t.defined()) return {nullptr, 0, 0};
  return {static_cast<T*>(t.address()), t.stride(0), t.stride(1)};
}

template <class T>
struct NormCall {
  Rows<const T> x, dout;
  Rows<T> out;  // or dx
  const T *weight, *bias;
  float offset, eps;
  const float* sums;  // of squares, or of products; null: rows are complete on this rank
  float *mean, *rstd;
  int64_t rows;
  int heads, width, row_width;
  bool layer;

  __device__ float factor(int i) const {
    return weight == nullptr ? 1.0f : to_float(weight[i]) + offset;
  }
  __device__ int64_t row() const {
    return int64_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / kWarp;
  }
  __device__ int lane() const { return static_cast<int>(threadIdx.x) % kWarp; }
};

template <class T>
__global__ void __launch_bounds__(kThreads) normalise(NormCall<T> call) {
  const int64_t row = call.row();
  if (row >= call.rows) return;
  const T* x = call.x.at(row, call.heads);
  T* out = call.out.at(row, call.heads);
  const auto width = static_cast<float>(call.width);
  float mean = 0, square = 0;
  if (call.layer) {
    for (int i = call.lane(); i < call.width; i += kWarp) mean += to_float(x[i]);
    mean = warp_sum(mean) / width;
  }
  if (call.sums == nullptr) {
    for (int i = call.lane(); i < call.width; i += kWarp) {
      const float centred = to_float(x[i]) - mean;
      square += __fmul_rn(centred, centred);
    }
    square = warp_sum(square) / width;
  } else {
    square = call.sums[row] / static_cast<float>(call.row_width);
  }
  const float rstd = 1.0f / sqrtf(square + call.eps);
  if (call.lane() == 0) {
    call.rstd[row] = rstd;
    if (call.layer) call.mean[row] = mean;
  }
  for (int i = call.lane(); i < call.width; i += kWarp) {
    const float y = __fmul_rn((to_float(x[i]) - mean) * rstd, call.factor(i));
    out[i] = from_float<T>(call.bias == nullptr ? y : y + to_float(call.bias[i]));
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) differentiate(NormCall<T> call) {
  const int64_t row = call.row();
  if (row >= call.rows) return;
  const T* x = call.x.at(row, call.heads);
  const T* dout = call.dout.at(row, call.heads);
  T* dx = call.out.at(row, call.heads);
  const float mean = call.layer ? call.mean[row] : 0.0f, rstd = call.rstd[row];
  const auto xhat = [&](int i) { return __fmul_rn(to_float(x[i]) - mean, rstd); };
  const auto slope = [&](int i) { return __fmul_rn(to_float(dout[i]), call.factor(i)); };
  float g = 0, g_xhat = 0;
  for (int i = call.lane(); i < call.width; i += kWarp) {
    g += slope(i);
    g_xhat += __fmul_rn(slope(i), xhat(i));
  }
  const auto width = static_cast<float>(call.width);
  const float mean_g = call.layer ? warp_sum(g) / width : 0.0f;
  const float mean_g_xhat = call.sums == nullptr
                                ? warp_sum(g_xhat) / width
                                : call.sums[row] * rstd / static_cast<float>(call.row_width);
  // dx may be dout: the same lane reads each element before it writes it.
  for (int i = call.lane(); i < call.width; i += kWarp)
    dx[i] = from_float<T>(rstd * (slope(i) - mean_g - __fmul_rn(xhat(i), mean_g_xhat)));
}

template <class T>
struct SumCall {
  Rows<const T> x, dout;
  const float *mean, *rstd;   // mean: LayerNorm only
  float *dweights, *dbiases;  // partial rows, one per block of tokens; null: not computed
  int64_t tokens;
  int height, heads, width;
};

// Each thread sums one column of a block of tokens.
template <class T>
__global__ void __launch_bounds__(kThreads) sum_columns(SumCall<T> call) {
  const int column = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (column >= call.width) return;
  const int64_t begin = int64_t{blockIdx.x} * call.height * call.heads;
  const int64_t last = (int64_t{blockIdx.x} + 1) * call.height;
  const int64_t end = (last < call.tokens ? last : call.tokens) * call.heads;
  float dweight = 0, dbias = 0;
  for (int64_t row = begin; row < end; ++row) {
    const float d = to_float(call.dout.at(row, call.heads)[column]);
    const float mean = call.mean == nullptr ? 0.0f : call.mean[row];
    const float x = to_float(call.x.at(row, call.heads)[column]);
    dweight = fmaf(d, (x - mean) * call.rstd[row], dweight);
    dbias += d;
  }
  const int64_t at = int64_t{blockIdx.x} * call.width + column;
  if (call.dweights != nullptr) call.dweights[at] = dweight;
  if (call.dbiases != nullptr) call.dbiases[at] = dbias;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    dot(Rows<const T> a, Rows<const T> b, NormCall<T> call, float* out) {
  const int64_t row = call.row();
  if (row >= call.rows) return;
  const T *x = a.at(row, call.heads), *y = b.at(row, call.heads);
  float sum = 0;
  for (int i = call.lane(); i < call.width; i += kWarp)
    sum += __fmul_rn(__fmul_rn(to_float(x[i]), to_float(y[i])), call.factor(i));
  sum = warp_sum(sum);
  if (call.lane() == 0) out[row] = sum;
}

Grid grid_of(int64_t rows) { return {dim3(static_cast<unsigned>(ceil_div(rows, kRowsOfBlock)))}; }

template <class T, class Args>
NormCall<T> call_of(const Args& args, const Tensor& x) {
  return {.x = rows_of<const T>(x),
          .dout = {nullptr, 0, 0},
          .out = {nullptr, 0, 0},
          .weight = address_of<T>(args.weight),
          .bias = nullptr,
          .offset = static_cast<float>(args.weight_offset),
          .eps = 0,
          .sums = nullptr,
          .mean = nullptr,
          .rstd = nullptr,
          .rows = x.size(0) * x.size(1),
          .heads = static_cast<int>(x.size(1)),
          .width = static_cast<int>(x.size(2)),
          .row_width = 0,
          .layer = false};
}

}  // namespace

void head_norm(const HeadNormArgs& args, Stream& stream) {
  if (args.rstd.elements() == 0) return;
  for_storage_type("head_norm", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    NormCall<T> call = call_of<T>(args, args.x);
    call.out = rows_of<T>(args.out);
    call.bias = address_of<T>(args.bias);
    call.eps = static_cast<float>(args.eps);
    call.sums = address_of<float>(args.squares);
    call.mean = address_of<float>(args.mean);
    call.rstd = address_of<float>(args.rstd);
    call.row_width = static_cast<int>(args.row_width);
    call.layer = args.kind == NormKind::layer;
    launch("head_norm", normalise<T>, grid_of(call.rows), stream, call);
  });
}

void head_norm_backward(const HeadNormBackwardArgs& args, Stream& stream) {
  const NormPartials partials = head_norm_backward_scratch(args, stream);
  const NormBlocks blocks(args.x.size(0));
  for_storage_type("head_norm_backward", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    if (args.x.elements() == 0) return;
    // Runs before dx, which may overwrite dout, is written.
    if (partials.dweights.defined() || partials.dbiases.defined()) {
      const SumCall<T> sums{.x = rows_of<const T>(args.x),
                            .dout = rows_of<const T>(args.dout),
                            .mean = address_of<float>(args.mean),
                            .rstd = address_of<float>(args.rstd),
                            .dweights = address_of<float>(partials.dweights),
                            .dbiases = address_of<float>(partials.dbiases),
                            .tokens = args.x.size(0),
                            .height = static_cast<int>(blocks.height),
                            .heads = static_cast<int>(args.x.size(1)),
                            .width = static_cast<int>(args.x.size(2))};
      const Grid grid{.blocks = dim3(static_cast<unsigned>(blocks.count),
                                     static_cast<unsigned>(ceil_div(sums.width, kThreads)))};
      launch("head_norm_backward, dweight", sum_columns<T>, grid, stream, sums);
    }
    NormCall<T> call = call_of<T>(args, args.x);
    call.dout = rows_of<const T>(args.dout);
    call.out = rows_of<T>(args.dx);
    call.sums = address_of<float>(args.products);
    call.mean = address_of<float>(args.mean);
    call.rstd = address_of<float>(args.rstd);
    call.row_width = static_cast<int>(args.row_width);
    call.layer = args.kind == NormKind::layer;
    launch("head_norm_backward", differentiate<T>, grid_of(call.rows), stream, call);
  });
  if (partials.dweights.defined()) add_partial_rows(partials.dweights, args.dweight, stream);
  if (partials.dbiases.defined()) add_partial_rows(partials.dbiases, args.dbias, stream);
}

void row_dot(const RowDotArgs& args, Stream& stream) {
  if (args.out.elements() == 0) return;
  for_storage_type("row_dot", args.a.dtype(), [&](auto type) {
    using T = decltype(type);
    const NormCall<T> call = call_of<T>(args, args.a);
    launch("row_dot", dot<T>, grid_of(call.rows), stream, rows_of<const T>(args.a),
           rows_of<const T>(args.b), call, address_of<float>(args.out));
  });
}

}  // namespace megatron::kernels::cuda
