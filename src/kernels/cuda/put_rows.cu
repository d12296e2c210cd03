#include "kernels/cuda/elements.h"
#include "kernels/cuda/put_rows.h"

namespace megatron::kernels::cuda {
namespace {

// Rows as units of bytes, as wide as all addresses and strides allow; stride, width in units.
template <class Unit>
__global__ void __launch_bounds__(kThreads)
    put(const Unit* x, const int32_t* rows, Unit* out, int64_t tokens, int64_t width,
        int64_t stride, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x, token = i / width;
  if (token >= tokens) return;
  const int32_t row = rows[token];
  if (row >= 0 && row < count) out[row * width + i % width] = x[token * stride + i % width];
}

template <class Unit>
bool put_as(const PutRowsArgs& args, Stream& stream) {
  const int64_t size = size_of(args.x.dtype()), unit = sizeof(Unit);
  const int64_t row = args.x.size(1) * size, stride = args.x.stride(0) * size;
  const auto* from = static_cast<const Unit*>(args.x.address());
  auto* to = static_cast<Unit*>(args.out.address());
  const auto whole = [&](int64_t bytes) { return bytes % unit == 0; };
  if (!whole(row) || !whole(stride) || !whole(reinterpret_cast<intptr_t>(from)) ||
      !whole(reinterpret_cast<intptr_t>(to)))
    return false;
  launch("put_rows", put<Unit>, grid_for(args.x.size(0) * (row / unit)), stream, from,
         static_cast<const int32_t*>(args.rows.address()), to, args.x.size(0), row / unit,
         stride / unit, args.out.size(0));
  return true;
}

}  // namespace

void put_rows(const PutRowsArgs& args, Stream& stream) {
  check(args);
  if (args.x.elements() == 0) return;
  if (put_as<int4>(args, stream) || put_as<int32_t>(args, stream)) return;
  put_as<int16_t>(args, stream);
}

}  // namespace megatron::kernels::cuda
