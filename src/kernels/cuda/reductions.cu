#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/ordered_sum.h"
#include "kernels/cuda/partial_rows.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/tensor_rows.h"
#include "kernels/cuda/together.h"
#include "kernels/cuda_scratch/scratch.h"
#include "kernels/table.h"

namespace megatron::kernels::cuda {
namespace {

constexpr int kWarps = kThreads / kWarp;

// A block sums `height` rows of kSlab columns: warp w adds rows w, w + kWarps, ... in order, then
// the warps' sums are added in order.
constexpr int kLaneColumns = 4, kSlab = kWarp * kLaneColumns;

template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_rows(const T* x, int64_t rows, int64_t width, int64_t height, bool vectors, float* out,
             bool accumulate) {
  constexpr int kUnroll = 8;
  __shared__ float partial[kWarps][kSlab];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t slab = int64_t{blockIdx.x} * kSlab, column = slab + lane * kLaneColumns;
  const int count = left<kLaneColumns>(width - column);
  const int64_t first = int64_t{blockIdx.y} * height, end = std::min(rows, first + height);
  float sum[kLaneColumns] = {};
  for (int64_t row = first + warp; row < end; row += int64_t{kUnroll} * kWarps) {
    float values[kUnroll][kLaneColumns];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = row + u * kWarps;
      const int here = at < end ? count : 0;
      read(x, {at * width + column, here, vectors && here == kLaneColumns}, values[u]);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
#pragma unroll
      for (int k = 0; k < kLaneColumns; ++k) sum[k] += values[u][k];
  }
#pragma unroll
  for (int k = 0; k < kLaneColumns; ++k) partial[warp][lane * kLaneColumns + k] = sum[k];
  __syncthreads();
  if (threadIdx.x >= kSlab || slab + threadIdx.x >= width) return;
  float total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += partial[w][threadIdx.x];
  float& to = out[blockIdx.y * width + slab + threadIdx.x];
  to = accumulate ? total + to : total;
}

// Reads f32 or f64 values as f64.
struct Row {
  const void* at;
  bool wide;
  __device__ double operator[](int64_t i) const {
    return wide ? static_cast<const double*>(at)[i]
                : static_cast<double>(static_cast<const float*>(at)[i]);
  }
};

__global__ void __launch_bounds__(kThreads)
    sum_in_order(Row x, Row weights, int64_t n, double* out) {
  const double sum = ordered_sum(
      n, [&](int64_t i) { return weights.at == nullptr ? x[i] : __dmul_rn(weights[i], x[i]); });
  if (threadIdx.x == 0) *out = sum;
}

template <class T>
struct Squared {
  const T* x;
  int64_t elements;
  double* partial;

  explicit Squared(const SumOfSquaresArgs& args)
      : x(static_cast<const T*>(args.x.address())),
        elements(args.x.elements()),
        partial(static_cast<double*>(args.partial.address())) {}
};

// Eight lanes sum one block of kNormBlock elements: lane i adds elements i, i + 8, ... and fetches
// the next ones meanwhile.
constexpr int kNormLanes = 8;

template <class T, class Rows>
__global__ void __launch_bounds__(kWarp) square_blocks(int64_t blocks, const Rows rows) {
  constexpr int kAhead = 256 / static_cast<int>(sizeof(T)), kStep = kAhead * kNormLanes;
  const int lane = threadIdx.x % kNormLanes;
  const int64_t of_all = int64_t{blockIdx.x} * (kWarp / kNormLanes) + threadIdx.x / kNormLanes;
  const auto [row, block] = rows.find(of_all < blocks ? of_all : blocks - 1);
  const int64_t begin = block * kNormBlock;
  const int count = of_all < blocks ? left<kNormBlock>(row.elements - begin) : 0;
  const T* at = row.x + begin + lane;
  T now[kAhead], next[kAhead];
  const auto fetch = [&](int first, T(&to)[kAhead]) {
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int i = first + k * kNormLanes;
      to[k] = i + lane < count ? at[i] : T(0);
    }
  };
  double sum = 0;
  fetch(0, now);
  for (int first = 0; first < count; first += kStep) {
    fetch(first + kStep, next);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const double value = static_cast<double>(now[k]);
      sum = __dadd_rn(sum, __dmul_rn(value, value));
      now[k] = next[k];
    }
  }
  for (int distance = 1; distance < kNormLanes; distance *= 2)
    sum += __shfl_xor_sync(kAllLanes, sum, distance);
  if (lane == 0 && count > 0) row.partial[block] = sum;
}

template <class T, class Rows>
void square(int64_t blocks, const Rows& rows, Stream& stream) {
  if (blocks == 0) return;
  const Grid grid{dim3(static_cast<unsigned>(ceil_div(blocks, kWarp / kNormLanes))), dim3(kWarp)};
  launch("sum_of_squares", square_blocks<T, Rows>, grid, stream, blocks, rows);
}

template <class T>
class SquaresTogether final : public Together {
 public:
  SquaresTogether(const RowList<Squared<T>>& rows, const Tensor& table)
      : blocks_(rows.units()), rows_(rows.upload(table)) {}
  void run(Stream& stream) override { square<T>(blocks_, rows_, stream); }

 private:
  int64_t blocks_;
  RowTable<Squared<T>> rows_;
};

template <class T>
std::unique_ptr<Together> squares(std::span<const SumOfSquaresArgs> calls, const Tensor& table) {
  RowList<Squared<T>> rows;
  for (const SumOfSquaresArgs& call : calls) {
    check(call);
    rows.add(Squared<T>(call), call.partial.elements());
  }
  return std::make_unique<SquaresTogether<T>>(rows, table);
}

Row row_of(const Tensor& tensor) {
  if (!tensor.defined()) return {nullptr, false};
  return {tensor.address(), tensor.dtype() == DType::f64};
}

}  // namespace

void column_sum(const ColumnSumArgs& args, Stream& stream) {
  const int64_t rows = args.x.size(0), width = args.x.size(1), height = column_sum_height(rows);
  const int64_t blocks = std::max<int64_t>(1, ceil_div(rows, height));
  const bool accumulate = args.out.beta != 0;
  for_storage_type("column_sum", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    if (width == 0) return;
    const T* x = static_cast<const T*>(args.x.address());
    float* out = static_cast<float*>(args.out.out.address());
    const Tensor partials = column_sum_scratch(args, stream);
    float* first = blocks == 1 ? out : static_cast<float*>(partials.address());
    const Grid grid{
        dim3(static_cast<unsigned>(ceil_div(width, kSlab)), static_cast<unsigned>(blocks))};
    launch("column_sum", sum_rows<T>, grid, stream, x, rows, width, height,
           width % kLaneColumns == 0 && aligned<kLaneColumns>(x), first, accumulate && blocks == 1);
    if (blocks > 1) add_partial_rows(partials, args.out, stream);
  });
}

void sum(const SumArgs& args, Stream& stream) {
  launch("sum", sum_in_order, Grid{dim3(1)}, stream, row_of(args.x), row_of(args.weights),
         args.x.elements(), static_cast<double*>(args.out.address()));
}

void sum_of_squares(const SumOfSquaresArgs& args, Stream& stream) {
  const int64_t blocks = args.partial.elements();
  if (args.x.dtype() == DType::f64)
    return square<double>(blocks, OneRow<Squared<double>>{Squared<double>(args)}, stream);
  square<float>(blocks, OneRow<Squared<float>>{Squared<float>(args)}, stream);
}

std::unique_ptr<Together> sum_of_squares_together(std::span<const SumOfSquaresArgs> calls,
                                                  const Tensor& table) {
  return calls[0].x.dtype() == DType::f64 ? squares<double>(calls, table)
                                          : squares<float>(calls, table);
}

}  // namespace megatron::kernels::cuda
