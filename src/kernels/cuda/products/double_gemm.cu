#include "kernels/cuda/grouped_gemm/plain_tile.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/products/double_gemm.h"

namespace megatron::kernels::cuda {
namespace {

template <class T, bool kTransposeA, bool kTransposeB>
struct DoubleProduct {
  Operand<T, !kTransposeA> a;
  Operand<T, kTransposeB> b;
  const void* bias;  // may be null
  bool bias_of_out;  // true: bias has the type of out; false: of a
  int64_t m, n, depth, pitch;
  Wide<T>* out;
  bool accumulate;
};

template <class Tile, class T, bool kTransposeA, bool kTransposeB>
__global__ void __launch_bounds__(kProductThreads, kProductBlocks)
    multiply_in_double(DoubleProduct<T, kTransposeA, kTransposeB> p) {
  const int64_t row = int64_t{blockIdx.x} * Tile::kRows;
  const int64_t column = int64_t{blockIdx.y} * Tile::kColumns;
  Tile::multiply(p.a.at(kTransposeA ? 0 : row, kTransposeA ? row : 0, p.m - row),
                 p.b.at(kTransposeB ? column : 0, kTransposeB ? 0 : column, p.n - column), p.depth,
                 [&]<int N>(int i, int j, const Vector<double, N>& sums) {
                   Wide<T>* to = p.out + (row + i) * p.pitch + column + j;
                   for (int k = 0; k < N && column + j + k < p.n; ++k) {
                     double sum = sums.at[k];
                     const int64_t at = column + j + k;
                     if (p.bias != nullptr)
                       sum += p.bias_of_out ? static_cast<const Wide<T>*>(p.bias)[at]
                                            : widen(static_cast<const T*>(p.bias)[at]);
                     if (p.accumulate) sum += to[k];
                     to[k] = static_cast<Wide<T>>(sum);
                   }
                 });
}

template <class T, bool kTransposeA, bool kTransposeB>
void run(const GemmArgs& args, Stream& stream) {
  using Tile = PlainTile<double>;
  const Tensor& out = args.out;
  const DoubleProduct<T, kTransposeA, kTransposeB> p{
      .a = {args.a, args.a.stride(0)},
      .b = {args.b, args.b.stride(0)},
      .bias = address_of<void>(args.bias),
      .bias_of_out = args.bias.defined() && args.bias.dtype() == out.dtype(),
      .m = out.size(0),
      .n = out.size(1),
      .depth = args.a.size(kTransposeA ? 0 : 1),
      .pitch = out.stride(0),
      .out = address_of<Wide<T>>(out),
      .accumulate = args.beta != 0};
  const Grid grid{.blocks = dim3(static_cast<unsigned>(ceil_div(p.m, Tile::kRows)),
                                 static_cast<unsigned>(ceil_div(p.n, Tile::kColumns))),
                  .threads = dim3(kProductThreads)};
  launch("gemm", multiply_in_double<Tile, T, kTransposeA, kTransposeB>, grid, stream, p);
}

}  // namespace

void double_gemm(const GemmArgs& args, Stream& stream) {
  for_floating_type("gemm", args.a.dtype(), [&](auto type) {
    using T = decltype(type);
    if (args.transpose_a)
      return args.transpose_b ? run<T, true, true>(args, stream)
                              : run<T, true, false>(args, stream);
    args.transpose_b ? run<T, false, true>(args, stream) : run<T, false, false>(args, stream);
  });
}

}  // namespace megatron::kernels::cuda
