#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"

namespace megatron::kernels::cuda {
namespace {

// Sizes and strides in units of bytes.
struct Put {
  int64_t tokens, heads, width, token_stride, head_stride;
  int64_t page, rows, page_stride, row_stride, out_head_stride;
};

template <class Unit>
__global__ void __launch_bounds__(kThreads)
    put(Put p, const Unit* x, const int32_t* rows, Unit* out) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x, head = i / p.width,
                token = head / p.heads;
  if (token >= p.tokens) return;
  const int64_t row = rows[token], h = head % p.heads, d = i % p.width;
  if (row < 0 || row >= p.rows) return;
  const int64_t place = row / p.page * p.page_stride + row % p.page * p.row_stride;
  out[place + h * p.out_head_stride + d] = x[token * p.token_stride + h * p.head_stride + d];
}

// Copies in this unit if all addresses and strides are multiples of its size. Returns false if not.
template <class Unit>
bool put_as(const PutRowsArgs& args, Stream& stream) {
  const Tensor &x = args.x, &out = args.out;
  const auto unit = static_cast<int64_t>(sizeof(Unit)), size = size_of(x.dtype());
  bool whole = reinterpret_cast<intptr_t>(x.address()) % unit == 0 &&
               reinterpret_cast<intptr_t>(out.address()) % unit == 0;
  const auto units = [&](int64_t elements) {
    whole = whole && elements * size % unit == 0;
    return elements * size / unit;
  };
  const Put p{.tokens = x.size(0),
              .heads = x.size(1),
              .width = units(x.size(2)),
              .token_stride = units(x.stride(0)),
              .head_stride = units(x.stride(1)),
              .page = out.size(1),
              .rows = out.size(0) * out.size(1),
              .page_stride = units(out.stride(0)),
              .row_stride = units(out.stride(1)),
              .out_head_stride = units(out.stride(2))};
  if (!whole) return false;
  launch("put_rows", put<Unit>, grid_for(p.tokens * p.heads * p.width), stream, p,
         static_cast<const Unit*>(x.address()), static_cast<const int32_t*>(args.rows.address()),
         static_cast<Unit*>(out.address()));
  return true;
}

}  // namespace

void put_rows(const PutRowsArgs& args, Stream& stream) {
  if (args.x.elements() == 0) return;
  if (put_as<int4>(args, stream) || put_as<int32_t>(args, stream)) return;
  put_as<int16_t>(args, stream);
}

}  // namespace megatron::kernels::cuda
