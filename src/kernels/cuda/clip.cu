#include "kernels/cuda/kernels.h"
#include "kernels/cuda/row_chunks.h"

namespace megatron::kernels::cuda {
namespace {

// A NaN compares false and stays.
template <class T>
__global__ void __launch_bounds__(kThreads)
    clip_rows(RowChunks all, float limit, StridedRows<T> x, StridedRows<T> out) {
  const ChunkOfRow<T> at(all);
  Vector<T, kChunk<T>> values = at.load(x);
#pragma unroll
  for (T& value : values.at) {
    const float v = to_float(value);
    value = from_float<T>(v > limit ? limit : v < -limit ? -limit : v);
  }
  at.store(out, values);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    clip_rows_backward(RowChunks all, float limit, StridedRows<T> x, StridedRows<T> dout,
                       StridedRows<T> dx) {
  const ChunkOfRow<T> at(all);
  const Vector<T, kChunk<T>> values = at.load(x);
  Vector<T, kChunk<T>> gradient = at.load(dout);
#pragma unroll
  for (int k = 0; k < kChunk<T>; ++k)
    if (!(fabsf(to_float(values.at[k])) <= limit)) gradient.at[k] = from_float<T>(0.0f);
  at.store(dx, gradient);
}

}  // namespace

void clip(const ClipArgs& args, Stream& stream) {
  check(args);
  if (args.x.elements() == 0) return;
  for_storage_type("clip", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const StridedRows<T> x(args.x), out(args.out);
    const RowChunks all = RowChunks::of<T>("clip", args.x, {x, out});
    launch("clip", clip_rows<T>, grid_for(all.items), stream, all, static_cast<float>(args.limit),
           x, out);
  });
}

void clip_backward(const ClipBackwardArgs& args, Stream& stream) {
  check(args);
  if (args.x.elements() == 0) return;
  for_storage_type("clip_backward", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const StridedRows<T> x(args.x), dout(args.dout), dx(args.dx);
    const RowChunks all = RowChunks::of<T>("clip_backward", args.x, {x, dout, dx});
    launch("clip_backward", clip_rows_backward<T>, grid_for(all.items), stream, all,
           static_cast<float>(args.limit), x, dout, dx);
  });
}

}  // namespace megatron::kernels::cuda
