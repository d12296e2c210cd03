#include "kernels/cuda/grouped_gemm/plain_tile.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/products/codes.h"
#include "kernels/cuda_scratch/gemm.h"

namespace megatron::kernels::cuda {
namespace {

__global__ void set_factors(const float* a, const float* b, float beta, float* factors) {
  factors[kInverseA] = a == nullptr ? 1.0f : 1 / *a;
  factors[kInverseB] = b == nullptr ? 1.0f : 1 / *b;
  factors[kAlpha] = factors[kInverseA] * factors[kInverseB];
  factors[kBeta] = beta;
}

// A PlainTile's operand: rows of codes with the scales of their blocks.
struct Codes {
  static constexpr bool kInside = true;
  LowFormat format;
  ScaleLayout layout;
  const uint8_t* codes;
  const void* scales;
  int64_t rows, depth;
  int64_t first, places;  // of the tile

  explicit Codes(const CodedOperand& operand)
      : format(operand.format),
        layout(operand.layout),
        codes(address_of<uint8_t>(operand.codes)),
        scales(address_of<void>(operand.scales)),
        rows(operand.rows()),
        depth(operand.depth()),
        first(0),
        places(0) {}

  __device__ Codes at(int64_t row) const {
    Codes part = *this;
    part.first = row;
    part.places = rows - row;
    return part;
  }
  __device__ float value(int64_t place, int64_t k) const {
    const int64_t row = first + place, at = row * depth + k;
    if (format == LowFormat::e2m1)
      return decode(format, codes[at / 2] >> at % 2 * 4 & 15) * scale(row, k);
    return layout == ScaleLayout::tensor ? decode(format, codes[at])
                                         : decode(format, codes[at]) * scale(row, k);
  }
  __device__ float scale(int64_t row, int64_t k) const {
    const int64_t at = scale_index(layout, rows, depth, row, k / scaled_depth(layout));
    return scale_type(layout) == DType::f32
               ? scale_value(layout, static_cast<const float*>(scales)[at])
               : scale_value(layout, static_cast<const uint8_t*>(scales)[at]);
  }
};

template <class Out>
struct ProductOfCodes {
  Codes a, b;
  ProductScales scales;
  const Out* bias;  // may be null
  int64_t n, pitch;
  Out* out;
  bool accumulate;
};

template <class Out>
__global__ void __launch_bounds__(kProductThreads, kProductBlocks)
    multiply_tiles(ProductOfCodes<Out> p) {
  using Tile = PlainTile<float>;
  const int64_t row = int64_t{blockIdx.x} * Tile::kRows;
  const int64_t column = int64_t{blockIdx.y} * Tile::kColumns;
  const float factor = p.scales.template factor<float>();
  Tile::multiply(p.a.at(row), p.b.at(column), p.a.depth,
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

}  // namespace

void product_factors(const GemmArgs& args, const Tensor& factors, Stream& stream) {
  launch("gemm", set_factors, {dim3(1), dim3(1)}, stream, address_of<float>(args.a_scale),
         address_of<float>(args.b_scale), args.beta, address_of<float>(factors));
}

void multiply_codes(const CodedGemmArgs& args, Stream& stream) {
  for_storage_type("coded_gemm", args.out.dtype(), [&](auto type) {
    using Out = decltype(type);
    using Tile = PlainTile<float>;
    const ProductOfCodes<Out> p{.a = Codes(args.a),
                                .b = Codes(args.b),
                                .scales = {args.a.tensor_scale, args.b.tensor_scale},
                                .bias = address_of<Out>(args.bias),
                                .n = args.out.size(1),
                                .pitch = args.out.stride(0),
                                .out = address_of<Out>(args.out),
                                .accumulate = args.beta != 0};
    const Grid grid{.blocks = dim3(static_cast<unsigned>(ceil_div(p.a.rows, Tile::kRows)),
                                   static_cast<unsigned>(ceil_div(p.n, Tile::kColumns))),
                    .threads = dim3(kProductThreads)};
    launch("coded_gemm", multiply_tiles<Out>, grid, stream, p);
  });
}

}  // namespace megatron::kernels::cuda
