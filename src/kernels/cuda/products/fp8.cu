#include "kernels/cuda/grouped_gemm/plain_tile.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/products/fp8.h"
#include "kernels/cuda_scratch/gemm.h"

namespace megatron::kernels::cuda {
namespace {

__global__ void set_factors(const float* a, const float* b, float beta, float* factors) {
  factors[kInverseA] = a == nullptr ? 1.0f : 1 / *a;
  factors[kInverseB] = b == nullptr ? 1.0f : 1 / *b;
  factors[kAlpha] = factors[kInverseA] * factors[kInverseB];
  factors[kBeta] = beta;
}

template <LowFormat kFormat>
struct Code {
  uint8_t bits;
};
template <LowFormat kFormat>
__device__ float widen(Code<kFormat> code) {
  return decode(kFormat, code.bits);
}

template <class A, class B, class Out>
struct ProductOfCodes {
  Operand<A, true> a;
  Operand<B, true> b;
  ProductScales scales;
  const Out* bias;  // may be null
  int64_t m, n, depth, pitch;
  Out* out;
  bool accumulate;
};

template <class A, class B, class Out>
__global__ void __launch_bounds__(kProductThreads, kProductBlocks)
    multiply_tiles(ProductOfCodes<A, B, Out> p) {
  using Tile = PlainTile<A, true, true, float, B>;
  const int64_t row = int64_t{blockIdx.x} * Tile::kRows;
  const int64_t column = int64_t{blockIdx.y} * Tile::kColumns;
  const float factor = p.scales.template factor<float>();
  Tile::multiply(p.a.at(row, 0, p.m - row), p.b.at(column, 0, p.n - column), p.depth,
                 [&]<int N>(int i, int j, const Vector<float, N>& sums) {
                   Out* to = p.out + (row + i) * p.pitch + column + j;
                   for (int k = 0; k < N && column + j + k < p.n; ++k) {
                     float sum = sums.at[k] * factor;
                     if (p.bias != nullptr) sum += to_float(p.bias[column + j + k]);
                     if (p.accumulate) sum += to_float(to[k]);
                     to[k] = from_float<Out>(sum);
                   }
                 });
}

template <class A, class B>
void run(const Fp8GemmArgs& args, Stream& stream) {
  for_storage_type("fp8_gemm", args.out.dtype(), [&](auto type) {
    using Out = decltype(type);
    using Tile = PlainTile<A, true, true, float, B>;
    const ProductOfCodes<A, B, Out> p{.a = {args.a, args.a.size(1)},
                                      .b = {args.b, args.b.size(1)},
                                      .scales = {args.a_scale, args.b_scale},
                                      .bias = address_of<Out>(args.bias),
                                      .m = args.out.size(0),
                                      .n = args.out.size(1),
                                      .depth = args.a.size(1),
                                      .pitch = args.out.stride(0),
                                      .out = address_of<Out>(args.out),
                                      .accumulate = args.beta != 0};
    const Grid grid{.blocks = dim3(static_cast<unsigned>(ceil_div(p.m, Tile::kRows)),
                                   static_cast<unsigned>(ceil_div(p.n, Tile::kColumns))),
                    .threads = dim3(kProductThreads)};
    launch("fp8_gemm", multiply_tiles<A, B, Out>, grid, stream, p);
  });
}

}  // namespace

void product_factors(const GemmArgs& args, const Tensor& factors, Stream& stream) {
  launch("gemm", set_factors, {dim3(1), dim3(1)}, stream, address_of<float>(args.a_scale),
         address_of<float>(args.b_scale), args.beta, address_of<float>(factors));
}

void multiply_codes(const Fp8GemmArgs& args, Stream& stream) {
  using E4m3 = Code<LowFormat::e4m3>;
  using E5m2 = Code<LowFormat::e5m2>;
  if (args.a_format == LowFormat::e5m2) return run<E5m2, E4m3>(args, stream);
  if (args.b_format == LowFormat::e5m2) return run<E4m3, E5m2>(args, stream);
  run<E4m3, E4m3>(args, stream);
}

}  // namespace megatron::kernels::cuda
