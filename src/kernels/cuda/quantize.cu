#include <cmath>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/stochastic_rounding.h"
#include "kernels/quantize_formulas.h"

namespace megatron::kernels::cuda {
namespace {

__global__ void set_zero(float* out) { *out = 0; }

// Floats that are not negative are ordered like their bits.
template <class T>
__global__ void __launch_bounds__(kThreads) find_amax(const T* x, int64_t n, float* out) {
  __shared__ float partial[kWarp];
  float most = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * kThreads)
    most = fmaxf(most, fabsf(to_float(x[i])));
  most = block_max(most, partial);
  if (threadIdx.x == 0) atomicMax(reinterpret_cast<unsigned*>(out), __float_as_uint(most));
}

struct TensorScale {
  float largest, power;
  bool delayed, use_history;
  const float* amax;
  float* history;
  int64_t count;
  float* scale;
};

// One block. Each turn moves as many elements of the history as it has threads.
__global__ void __launch_bounds__(kThreads) set_tensor_scale(TensorScale work) {
  __shared__ float partial[kWarp];
  const float amax = *work.amax;
  float most = amax;
  for (int64_t first = 0; first < work.count; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    const float next = i + 1 < work.count ? work.history[i + 1] : amax;
    if (work.use_history && i < work.count) most = fmaxf(most, work.history[i]);
    __syncthreads();
    if (i < work.count) work.history[i] = next;
    __syncthreads();
  }
  most = block_max(most, partial);
  if (threadIdx.x == 0)
    *work.scale = scale_of_tensor(work.largest, work.power, most, work.delayed,
                                  work.delayed ? *work.scale : 1.0f);
}

// Groups of rows (QuantizeArgs::row_groups); cuts null: one.
struct RowGroups {
  const int32_t* cuts;
  int64_t count;
};
RowGroups row_groups(const Tensor& groups) {
  return {address_of<int32_t>(groups), groups.defined() ? groups.size(0) - 1 : 0};
}
// At least the number of rows of blocks.
int64_t rows_of_blocks(const RowGroups& groups, int64_t rows, int64_t height) {
  return ceil_div(rows, height) + groups.count;
}

template <class T>
struct Quantization {
  LowFormat format;
  BlockScale rule;
  const T* x;
  const float *scale, *maxima;  // maxima null: found in x
  int64_t rows, columns;
  int64_t block_rows, block_columns, across;  // across: blocks in a row of blocks
  T* values;
  uint8_t* codes;
  float* scales;
  uint8_t* scale_codes;
  bool stochastic;
  RoundingChances chances;
  RowGroups groups;

  __device__ float amax_of(int64_t row, int64_t column) const {
    return fabsf(to_float(x[row * columns + column]));
  }
  __device__ BlockFactors factors(float amax) const {
    return block_factors(rule, format, amax, scale == nullptr ? 1.0f : *scale);
  }
  __device__ void store_scale(int64_t block, const BlockFactors& f) const {
    if (scales != nullptr) scales[block] = f.factor;
    if (scale_codes != nullptr) scale_codes[block] = static_cast<uint8_t>(f.code);
  }
  __device__ void round(int64_t row, int64_t column, const BlockFactors& f) const {
    const LowFormatBits bits(format);
    const int64_t at = row * columns + column;
    float scaled = to_float(x[at]) * f.multiplier;
    if (rule == BlockScale::nvfp4_quotient) scaled /= f.divisor;
    const float size = fabsf(scaled);
    const float q =
        stochastic ? bits.rounded_by_chance(size, chances.at(row, column)) : bits.rounded(size);
    const bool nan = std::isnan(scaled);
    if (codes != nullptr)
      codes[at] = static_cast<uint8_t>(
          nan ? bits.nan : bits.code_of(q) | (std::signbit(scaled) ? bits.sign : 0u));
    if (values != nullptr)
      values[at] = from_float<T>(nan ? scaled : copysignf(q, scaled) * f.factor);
  }
};

// Rows of a row of blocks.
struct BlockRows {
  int64_t first, end;
};
__device__ inline BlockRows rows_of_block(const RowGroups& groups, int64_t rows, int64_t height,
                                          int64_t block) {
  if (groups.cuts == nullptr) {
    const int64_t first = block * height;
    return {first, min(first + height, rows)};
  }
  for (int64_t g = 0; g <= groups.count; ++g) {
    const int64_t begin = groups.cuts[g], end = g < groups.count ? groups.cuts[g + 1] : rows;
    const int64_t blocks = (end - begin + height - 1) / height;
    if (block < blocks) {
      const int64_t first = begin + block * height;
      return {first, min(first + height, end)};
    }
    block -= blocks;
  }
  return {rows, rows};
}

// A thread quantises a block of one column, or an element without blocks.
template <class T>
__global__ void __launch_bounds__(kThreads) quantize_columns(Quantization<T> work) {
  const int64_t block = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t column = block % work.columns;
  const auto [first, end] =
      rows_of_block(work.groups, work.rows, work.block_rows, block / work.columns);
  if (first >= work.rows) return;
  float amax = 0;
  if (work.maxima != nullptr) amax = work.maxima[block];
  else if (work.rule != BlockScale::given)
    for (int64_t row = first; row < end; ++row) amax = fmaxf(amax, work.amax_of(row, column));
  const BlockFactors factors = work.factors(amax);
  work.store_scale(block, factors);
  for (int64_t row = first; row < end; ++row) work.round(row, column, factors);
}

// A warp quantises a block.
template <class T>
__global__ void __launch_bounds__(kThreads) quantize_tiles(Quantization<T> work) {
  const int64_t block = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int64_t row = block / work.across * work.block_rows,
                column = block % work.across * work.block_columns;
  if (row >= work.rows) return;
  const int64_t width = min(work.block_columns, work.columns - column);
  const int64_t count = min(work.block_rows, work.rows - row) * width;
  float amax = 0;
  for (int64_t i = lane; work.maxima == nullptr && i < count; i += kWarp)
    amax = fmaxf(amax, work.amax_of(row + i / width, column + i % width));
  const BlockFactors factors =
      work.factors(work.maxima != nullptr ? work.maxima[block] : warp_max(amax));
  if (lane == 0) work.store_scale(block, factors);
  for (int64_t i = lane; i < count; i += kWarp)
    work.round(row + i / width, column + i % width, factors);
}

template <class T>
void quantize_blocks(const QuantizeArgs& args, Stream& stream) {
  const QuantizedBlocks& to = args.out;
  if (!to.values.defined() && !to.codes.defined() && !to.scales.defined()) return;
  const bool given = args.rule == BlockScale::given;
  const bool f32_scales = to.scales.defined() && to.scales.dtype() == DType::f32;
  Quantization<T> work{.format = args.format,
                       .rule = args.rule,
                       .x = address_of<T>(args.x),
                       .scale = address_of<float>(args.scale),
                       .maxima = address_of<float>(args.maxima),
                       .rows = args.x.size(0),
                       .columns = args.x.size(1),
                       .block_rows = given ? 1 : to.rows,
                       .block_columns = given ? 1 : to.columns,
                       .across = 0,
                       .values = address_of<T>(to.values),
                       .codes = address_of<uint8_t>(to.codes),
                       .scales = f32_scales ? address_of<float>(to.scales) : nullptr,
                       .scale_codes = f32_scales ? nullptr : address_of<uint8_t>(to.scales),
                       .stochastic = args.stochastic,
                       .chances = rounding_chances("quantize", args),
                       .groups = row_groups(args.row_groups)};
  work.across = ceil_div(work.columns, work.block_columns);
  const int64_t blocks = rows_of_blocks(work.groups, work.rows, work.block_rows) * work.across;
  if (work.block_columns == 1) {
    launch("quantize", quantize_columns<T>, grid_for(blocks), stream, work);
  } else {
    launch("quantize", quantize_tiles<T>, grid_for(blocks * kWarp), stream, work);
  }
}

// A thread rotates 16 rows of a column, or copies fewer ones.
template <class T>
__global__ void __launch_bounds__(kThreads)
    rotate_columns(const T* x, T* out, RowGroups groups, int64_t rows, int64_t columns) {
  const int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const auto [row, end] = rows_of_block(groups, rows, kHadamardRows, item / columns);
  const int64_t first = row * columns + item % columns;
  if (end - row < kHadamardRows) {
    for (int64_t i = 0; i < end - row; ++i) out[first + i * columns] = x[first + i * columns];
    return;
  }
  float v[kHadamardRows];
#pragma unroll
  for (int i = 0; i < kHadamardRows; ++i) {
    v[i] = to_float(x[first + i * columns]);
    if ((kHadamardMinus >> i & 1) != 0) v[i] = -v[i];
  }
#pragma unroll
  for (int half = 1; half < kHadamardRows; half *= 2) {
#pragma unroll
    for (int i = 0; i < kHadamardRows; ++i) {
      if ((i & half) != 0) continue;
      const float a = v[i], b = v[i + half];
      v[i] = a + b;
      v[i + half] = a - b;
    }
  }
#pragma unroll
  for (int i = 0; i < kHadamardRows; ++i) out[first + i * columns] = from_float<T>(v[i] * 0.25f);
}

}  // namespace

void amax(const AmaxArgs& args, Stream& stream) {
  float* out = address_of<float>(args.out.out);
  const int64_t n = args.x.elements();
  for_storage_type("amax", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    if (args.out.beta == 0) launch("amax", set_zero, {dim3(1), dim3(1)}, stream, out);
    constexpr int64_t kMostBlocks = 1024;
    const auto blocks = static_cast<unsigned>(std::min(kMostBlocks, ceil_div(n, kThreads)));
    if (n > 0) launch("amax", find_amax<T>, {dim3(blocks)}, stream, address_of<T>(args.x), n, out);
  });
}

void tensor_scale(const TensorScaleArgs& args, Stream& stream) {
  const TensorScale work{.largest = static_cast<float>(args.largest),
                         .power = power_of_two(-args.margin),
                         .delayed = args.delayed,
                         .use_history = args.use_history,
                         .amax = address_of<float>(args.amax),
                         .history = address_of<float>(args.history),
                         .count = args.history.defined() ? args.history.elements() : 0,
                         .scale = address_of<float>(args.scale)};
  launch("tensor_scale", set_tensor_scale, {dim3(1)}, stream, work);
}

void quantize(const QuantizeArgs& args, Stream& stream) {
  for_storage_type("quantize", args.x.dtype(), [&](auto type) {
    if (args.x.elements() > 0) quantize_blocks<decltype(type)>(args, stream);
  });
}

void hadamard(const HadamardArgs& args, Stream& stream) {
  for_storage_type("hadamard", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    if (args.x.elements() == 0) return;
    const int64_t rows = args.x.size(0), columns = args.x.size(1);
    const RowGroups groups = row_groups(args.row_groups);
    launch("hadamard", rotate_columns<T>,
           grid_for(rows_of_blocks(groups, rows, kHadamardRows) * columns), stream,
           address_of<T>(args.x), address_of<T>(args.out), groups, rows, columns);
  });
}

}  // namespace megatron::kernels::cuda
