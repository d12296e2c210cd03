#include <bit>
#include <cmath>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/stochastic_rounding.h"
#include "kernels/quantize_formulas.h"

namespace megatron::kernels::cuda {
namespace {

// Four adjacent numbers, of which `count` exist; the others are 0. whole: p is aligned to them, and
// all or none exist.
__device__ inline Vector<Bf16, 4> load_few(const Bf16* p, int64_t count, bool whole) {
  Vector<Bf16, 4> v{};
  if (whole) {
    if (count > 0) v = load_vector<Bf16, 4>(p);
  } else {
    for (int i = 0; i < 4 && i < count; ++i) v.at[i] = p[i];
  }
  return v;
}
__device__ inline void store_few(uint8_t* p, uint32_t codes, int64_t count, bool whole) {
  if (whole) {
    if (count > 0) *reinterpret_cast<uint32_t*>(p) = codes;
  } else {
    for (int i = 0; i < 4 && i < count; ++i) p[i] = static_cast<uint8_t>(codes >> 8 * i);
  }
}

// Codes of 8 bits of 4 numbers, the first in the lowest byte.
__device__ inline uint32_t codes_of(LowFormat format, const float (&x)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t low, high;
  if (format == LowFormat::e4m3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(x[1]), "f"(x[0]));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(x[3]), "f"(x[2]));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(low) : "f"(x[1]), "f"(x[0]));
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(high) : "f"(x[3]), "f"(x[2]));
  }
  return low | static_cast<uint32_t>(high) << 16;
#else
  const LowFormatBits bits(format);
  uint32_t codes = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t sign = std::signbit(x[i]) ? bits.sign : 0u;
    const uint32_t code =
        std::isnan(x[i]) ? bits.nan : bits.code_of(bits.rounded(fabsf(x[i]))) | sign;
    codes |= code << 8 * i;
  }
  return codes;
#endif
}

// A block of threads encodes a tile of kEdge x kEdge elements of x: blocks of scales do not go
// beyond it. A thread reads kFew adjacent elements of each kStep-th row.
inline constexpr int kEdge = 128, kFew = 4, kAcross = kEdge / kFew, kStep = kThreads / kAcross;
inline constexpr int kMostScales = kEdge * kEdge / 16;

// True if rows of that many elements consist of groups of kFew, aligned to so many bytes.
bool is_whole(int64_t width, const void* p, size_t bytes) {
  return width % kFew == 0 && reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

// An operand of x or of its transpose.
struct Direction {
  bool transposed;
  int height, width;  // log2 of those of a block of x with one scale
  uint8_t* codes;
  float* scales;         // null unless the layout's are f32
  uint8_t* scale_codes;  // likewise u8
  bool whole;            // rows of codes consist of whole, aligned groups of kFew

  // Block of an element of a tile, by its row and column there.
  __device__ int block(int i, int j) const { return (i >> height) * across() + (j >> width); }
  __device__ int across() const { return kEdge >> width; }
  __device__ int blocks() const { return (kEdge >> height) * across(); }
};

struct Encoding {
  LowFormat format;
  ScaleLayout layout;
  BlockScale rule;
  const Bf16* x;
  const float *scale, *maxima;  // null: none
  int64_t rows, columns;        // of x
  bool whole;                   // rows of x consist of whole, aligned groups of kFew
  bool stochastic;
  RoundingChances chances;
  int count;  // of directions
  Direction directions[2];

  __device__ int64_t operand_rows(const Direction& to) const {
    return to.transposed ? columns : rows;
  }
  __device__ int64_t depth(const Direction& to) const { return to.transposed ? rows : columns; }
  __device__ Vector<Bf16, kFew> load(int64_t row, int64_t column) const {
    const int64_t there = row < rows ? columns - column : 0;
    return load_few(x + row * columns + column, there, whole);
  }
};

struct TileScales {
  float most[kMostScales];     // |x|, then multipliers
  float stored[kMostScales];   // f32
  uint8_t codes[kMostScales];  // u8
};

// Finds the largest |x| of each block of the tile at (row, column).
__device__ inline void find_maxima(const Encoding& work, const Direction& to, int64_t row,
                                   int64_t column, TileScales& tile) {
  const int across = to.across();
  for (int b = static_cast<int>(threadIdx.x); b < to.blocks(); b += kThreads) {
    tile.most[b] = 0;
    if (work.maxima == nullptr) continue;
    const int64_t i = (row >> to.height) + b / across, j = (column >> to.width) + b % across;
    const int64_t grid = (work.columns + (1 << to.width) - 1) >> to.width;
    if (i << to.height < work.rows && j < grid) tile.most[b] = work.maxima[i * grid + j];
  }
  __syncthreads();
  if (work.maxima != nullptr) return;
  const int j = static_cast<int>(threadIdx.x) % kAcross * kFew;
  for (int i = static_cast<int>(threadIdx.x) / kAcross; i < kEdge; i += kStep) {
    const Vector<Bf16, kFew> x = work.load(row + i, column + j);
    float sizes[kFew];
#pragma unroll
    for (int k = 0; k < kFew; ++k) sizes[k] = fmaxf(0.0f, fabsf(to_float(x.at[k])));  // no NaN
    const bool one = to.width > 0, warp = to.across() == 1;
    if (one) sizes[0] = fmaxf(fmaxf(sizes[0], sizes[1]), fmaxf(sizes[2], sizes[3]));
    if (warp) sizes[0] = warp_max(sizes[0]);  // a warp reads a row of the tile
#pragma unroll
    for (int k = 0; k < kFew; ++k)
      if (!one || (k == 0 && (!warp || threadIdx.x % kWarp == 0)))
        atomicMax(reinterpret_cast<unsigned*>(&tile.most[to.block(i, j + k)]),
                  __float_as_uint(sizes[k]));
  }
  __syncthreads();
}

// Replaces the maxima by multipliers, and stores the scales of the tile's part of the operand.
__device__ inline void set_scales(const Encoding& work, const Direction& to, int64_t row,
                                  int64_t column, TileScales& tile) {
  const float whole = work.scale == nullptr ? 1.0f : *work.scale;
  for (int b = static_cast<int>(threadIdx.x); b < to.blocks(); b += kThreads) {
    const BlockFactors f = block_factors(work.rule, work.format, tile.most[b], whole);
    tile.most[b] = f.multiplier;
    tile.stored[b] = f.factor;
    tile.codes[b] = static_cast<uint8_t>(f.code);
  }
  __syncthreads();
  const int64_t rows = work.operand_rows(to), depth = work.depth(to),
                first_row = to.transposed ? column : row, along = scaled_depth(work.layout),
                first = (to.transposed ? row : column) / along, count = (depth + along - 1) / along;
  const auto block = [&](int r, int64_t b) {
    const int d = static_cast<int>(b * along);
    return to.transposed ? to.block(d, r) : to.block(r, d);
  };
  const auto index = [&](int64_t r, int64_t b) {
    return scale_index(work.layout, rows, depth, r, b);
  };
  if (work.layout == ScaleLayout::squares_128) {
    const int64_t end = first + 1 == count ? round_up(count, 4) : first + 1;
    const int64_t b = first + threadIdx.x;
    if (b < end) to.scales[index(first_row, b)] = b == first ? tile.stored[0] : 0.0f;
    return;
  }
  for (int at = static_cast<int>(threadIdx.x); at < kEdge * (kEdge / along); at += kThreads) {
    const int r = at % kEdge;
    const int64_t b = at / kEdge;
    const bool there = first_row + r < rows && first + b < count;
    if (work.layout == ScaleLayout::vectors_128) {
      if (there) to.scales[index(first_row + r, first + b)] = tile.stored[block(r, b)];
    } else if (first + b < round_up(count, 4)) {
      to.scale_codes[index(first_row + r, first + b)] =
          there ? tile.codes[block(r, b)] : uint8_t{0};
    }
  }
}

// The codes of kFew elements, the first in the lowest byte, by their multipliers.
__device__ inline uint32_t encode_few(const Encoding& work, const Vector<Bf16, kFew>& x,
                                      const float (&multipliers)[kFew], int64_t row,
                                      int64_t column) {
  float scaled[kFew];
#pragma unroll
  for (int k = 0; k < kFew; ++k) scaled[k] = to_float(x.at[k]) * multipliers[k];
  if (work.format != LowFormat::e2m1) return codes_of(work.format, scaled);
  constexpr LowFormatBits kBits(LowFormat::e2m1);
  uint32_t codes = 0;
#pragma unroll
  for (int k = 0; k < kFew; ++k) {
    const float size = fabsf(scaled[k]);
    const float q = work.stochastic
                        ? kBits.rounded_by_chance(size, work.chances.at(row, column + k))
                        : kBits.rounded(size);
    const uint32_t sign = std::signbit(scaled[k]) ? kBits.sign : 0u;
    codes |= (std::isnan(scaled[k]) ? kBits.nan : kBits.code_of(q) | sign) << 8 * k;
  }
  return codes;
}

// Stores the tile's rows of the operand. codes: of x, a byte each.
__device__ inline void store_codes(const Encoding& work, const Direction& to, int64_t row,
                                   int64_t column, const uint8_t (&codes)[kEdge][kEdge + kFew]) {
  const int64_t rows = work.operand_rows(to), depth = work.depth(to),
                first_row = to.transposed ? column : row, first = to.transposed ? row : column;
  const int d = static_cast<int>(threadIdx.x) % kAcross * kFew;
  for (int r = static_cast<int>(threadIdx.x) / kAcross; r < kEdge; r += kStep) {
    if (first_row + r >= rows) break;
    uint32_t some[kFew];
#pragma unroll
    for (int k = 0; k < kFew; ++k) some[k] = to.transposed ? codes[d + k][r] : codes[r][d + k];
    const int64_t at = (first_row + r) * depth + first + d, left = depth - first - d;
    if (work.format != LowFormat::e2m1) {
      store_few(to.codes + at, some[0] | some[1] << 8 | some[2] << 16 | some[3] << 24, left,
                to.whole);
    } else {
      if (left > 0) to.codes[at / 2] = static_cast<uint8_t>(some[0] | some[1] << 4);
      if (left > 2) to.codes[at / 2 + 1] = static_cast<uint8_t>(some[2] | some[3] << 4);
    }
  }
}

// Writes the codes of the tile, a byte each. scales: multipliers of the blocks of `to`; null: the
// tensor's scale.
__device__ inline void encode_tile(const Encoding& work, const Direction& to, int64_t row,
                                   int64_t column, const TileScales* scales,
                                   uint8_t (&codes)[kEdge][kEdge + kFew]) {
  const float scale = work.scale == nullptr ? 1.0f : *work.scale;
  const int j = static_cast<int>(threadIdx.x) % kAcross * kFew;
  for (int i = static_cast<int>(threadIdx.x) / kAcross; i < kEdge; i += kStep) {
    if (row + i >= work.rows) break;
    float multipliers[kFew];
#pragma unroll
    for (int k = 0; k < kFew; ++k)
      multipliers[k] = scales == nullptr ? scale : scales->most[to.block(i, j + k)];
    *reinterpret_cast<uint32_t*>(&codes[i][j]) =
        encode_few(work, work.load(row + i, column + j), multipliers, row + i, column + j);
  }
}

__global__ void __launch_bounds__(kThreads) encode_tiles(Encoding work) {
  alignas(16) __shared__ uint8_t codes[kEdge][kEdge + kFew];
  __shared__ TileScales scales;
  const int64_t row = int64_t{blockIdx.x} * kEdge, column = int64_t{blockIdx.y} * kEdge;
  const bool blocks = work.layout != ScaleLayout::tensor;
  for (int i = 0; i < work.count; ++i) {
    const Direction& to = work.directions[i];
    if (blocks) {
      find_maxima(work, to, row, column, scales);
      set_scales(work, to, row, column, scales);
    }
    if (blocks || i == 0) encode_tile(work, to, row, column, blocks ? &scales : nullptr, codes);
    __syncthreads();
    store_codes(work, to, row, column, codes);
    __syncthreads();
  }
}

Direction direction_of(const EncodeOperandArgs& args) {
  const CodedOperand& out = args.out;
  const QuantizedBlocks blocks = quantization_of(args).out;
  const bool f32 = out.scales.defined() && out.scales.dtype() == DType::f32;
  return {.transposed = args.transposed,
          .height = std::countr_zero(static_cast<uint64_t>(blocks.rows)),
          .width = std::countr_zero(static_cast<uint64_t>(blocks.columns)),
          .codes = address_of<uint8_t>(out.codes),
          .scales = f32 ? address_of<float>(out.scales) : nullptr,
          .scale_codes = f32 ? nullptr : address_of<uint8_t>(out.scales),
          .whole = is_whole(out.codes.size(1), address_of<uint8_t>(out.codes), kFew)};
}

}  // namespace

// Codes of 8 bits are rounded by the GPU's conversions from compute capability 8.9 on.
void encode_operand(const EncodeOperandArgs& args, Stream& stream) {
  if (args.x.elements() == 0) return;
  const bool two = args.transpose_out.codes.defined();
  const int64_t rows = args.x.size(0), columns = args.x.size(1);
  const Encoding work{
      .format = args.out.format,
      .layout = args.out.layout,
      .rule = quantization_of(args).rule,
      .x = address_of<Bf16>(args.x),
      .scale = address_of<float>(args.out.tensor_scale),
      .maxima = address_of<float>(args.maxima),
      .rows = rows,
      .columns = columns,
      .whole = is_whole(columns, address_of<Bf16>(args.x), kFew * sizeof(Bf16)),
      .stochastic = args.stochastic,
      .chances = rounding_chances("encode_operand", args),
      .count = two ? 2 : 1,
      .directions = {direction_of(args), two ? direction_of(for_transpose(args)) : Direction{}}};
  const Grid grid{dim3(static_cast<unsigned>(ceil_div(rows, kEdge)),
                       static_cast<unsigned>(ceil_div(columns, kEdge)))};
  launch("encode_operand", encode_tiles, grid, stream, work);
}

}  // namespace megatron::kernels::cuda
