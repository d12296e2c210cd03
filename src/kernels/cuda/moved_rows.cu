// Moves rows of tokens to experts and back.
#include "kernels/cuda/gather_rows.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/row_chunks.h"
#include "kernels/cuda/wide.h"

namespace megatron::kernels::cuda {
namespace {

struct SharedRows {
  const int32_t* index;
  int64_t share;

  __device__ int64_t row(int64_t i) const { return index[i] < 0 ? -1 : index[i] / share; }
};

// index: null if the k rows of a token are `apart` elements from each other.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_moved_rows(RowChunks all, StridedRows<T> x, const int32_t* index, int k, int64_t apart,
                   StridedRows<T> out) {
  const ChunkOfRow<T> at(all);
  if (at.count <= 0) return;
  Wide<T> sums[kChunk<T>] = {};
  for (int j = 0; j < k; ++j) {
    const int64_t row = index == nullptr ? at.row : index[at.row * k + j];
    if (row < 0) continue;
    const T* begin = x.p + row * x.stride + (index == nullptr ? j * apart : 0);
    const Vector<T, kChunk<T>> values =
        load_chunk<kChunk<T>>(begin + at.column, at.count, at.whole);
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) sums[i] += widen(values.at[i]);
  }
  Vector<T, kChunk<T>> rounded;
#pragma unroll
  for (int i = 0; i < kChunk<T>; ++i) rounded.at[i] = narrow<T>(sums[i]);
  at.store(out, rounded);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    multiply_rows(RowChunks all, StridedRows<T> x, const Wide<T>* factors, StridedRows<T> out) {
  const ChunkOfRow<T> at(all);
  if (at.count <= 0) return;
  const Wide<T> factor = factors[at.row];
  Vector<T, kChunk<T>> values = at.load(x);
#pragma unroll
  for (int i = 0; i < kChunk<T>; ++i) values.at[i] = narrow<T>(widen(values.at[i]) * factor);
  at.store(out, values);
}

template <class T>
struct ScaledRows {
  int64_t rows, width;
  bool whole;  // all rows consist of whole chunks at multiples of 16 bytes
  const T *x, *dout;
  const Wide<T>* factors;
  T* dx;
  Wide<T>* dfactors;
};

// One warp per row.
template <class T>
__global__ void __launch_bounds__(kThreads) differentiate_scaled(ScaledRows<T> work) {
  constexpr int N = kChunk<T>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (row >= work.rows) return;
  const Wide<T> factor = work.factors[row];
  Wide<T> sum = 0;
  for (int64_t column = lane * N; column < work.width; column += kWarp * N) {
    const int64_t at = row * work.width + column, count = work.width - column;
    const Vector<T, N> x = load_chunk<N>(work.x + at, count, work.whole);
    Vector<T, N> gradient = load_chunk<N>(work.dout + at, count, work.whole);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const Wide<T> dout = widen(gradient.at[i]);
      sum += dout * widen(x.at[i]);
      gradient.at[i] = narrow<T>(dout * factor);
    }
    store_chunk(work.dx + at, gradient, count, work.whole);
  }
  sum = warp_sum(sum);
  if (lane == 0) work.dfactors[row] = sum;
}

}  // namespace

void take_rows(const TakeRowsArgs& args, Stream& stream) {
  const SharedRows rows{address_of<int32_t>(args.index), args.share};
  gather_rows("take_rows", rows, args.index.size(0), args.x, args.out, stream);
}

void sum_rows(const SumRowsArgs& args, Stream& stream) {
  if (args.out.elements() == 0) return;
  for_floating_type("sum_rows", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const bool listed = args.index.defined();
    const StridedRows<T> x(args.x), out(args.out);
    const int64_t k = listed ? args.index.size(1) : args.x.size(1),
                  apart = listed ? 0 : args.x.stride(1);
    RowChunks all = RowChunks::of<T>("sum_rows", args.out, {x, out});
    all.whole = all.whole && apart % kChunk<T> == 0;
    launch("sum_rows", sum_moved_rows<T>, grid_for(all.items), stream, all, x,
           address_of<int32_t>(args.index), static_cast<int>(k), apart, out);
  });
}

void scale_rows(const ScaleRowsArgs& args, Stream& stream) {
  if (args.x.elements() == 0) return;
  for_floating_type("scale_rows", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const StridedRows<T> x(args.x), out(args.out);
    const RowChunks all = RowChunks::of<T>("scale_rows", args.x, {x, out});
    launch("scale_rows", multiply_rows<T>, grid_for(all.items), stream, all, x,
           address_of<Wide<T>>(args.factors), out);
  });
}

void scale_rows_backward(const ScaleRowsBackwardArgs& args, Stream& stream) {
  const int64_t rows = args.x.size(0), width = args.x.size(1);
  if (rows == 0) return;
  for_floating_type("scale_rows_backward", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const ScaledRows<T> work{
        .rows = rows,
        .width = width,
        .whole = width % kChunk<T> == 0 &&
                 are_aligned({args.x.address(), args.dout.address(), args.dx.address()}),
        .x = address_of<T>(args.x),
        .dout = address_of<T>(args.dout),
        .factors = address_of<Wide<T>>(args.factors),
        .dx = address_of<T>(args.dx),
        .dfactors = address_of<Wide<T>>(args.dfactors)};
    launch("scale_rows_backward", differentiate_scaled<T>, grid_for(rows * kWarp), stream, work);
  });
}

}  // namespace megatron::kernels::cuda
