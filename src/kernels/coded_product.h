// Operands of matrix products as codes of 8- and 4-bit floats, and the products of such operands.
#pragma once

#include "base/divide.h"
#include "kernels/quantize.h"

namespace megatron::kernels {

// How the scales of an operand [R,K] are stored, whose products sum over K: the layouts that
// cuBLASLt reads, aligned to 16 bytes (cuBLAS 13 documentation, section 3.1.4). Padding is zero.
//   tensor       none but the tensor's own
//   vectors_128  f32 [ceil(K / 128), R]: for 128 elements of a row
//   squares_128  f32 [ceil(R / 128), ceil(K / 128) rounded up to a multiple of 4]: for 128 x 128
//   mx_32        u8 [ceil(R / 128), ceil(K / 128), 512], e8m0: for 32 elements of a row
//   nv_16        u8 [ceil(R / 128), ceil(K / 64), 512], e4m3: for 16 elements of a row
// 512 bytes are the scales of 128 rows and 4 blocks: that of row r and block b is byte
// r % 32 * 16 + r / 32 * 4 + b. An element is its code times its scale, f32 or as the type says,
// and divided by the tensor's scale if the layout is tensor or nv_16.
enum class ScaleLayout : uint8_t { tensor, vectors_128, squares_128, mx_32, nv_16 };

struct CodedOperand {
  LowFormat format = LowFormat::e4m3;  // e2m1 for nv_16 and only for it
  ScaleLayout layout = ScaleLayout::tensor;
  // u8 [R,K]; e2m1: u8 [R,K/2], with element 2 i in the lower half of byte i. Contiguous.
  Tensor codes;
  Tensor scales;        // undefined for tensor
  Tensor tensor_scale;  // f32 0-d, for tensor and nv_16: what elements were multiplied by

  int64_t rows() const { return codes.size(0); }
  int64_t depth() const { return codes.size(1) * (format == LowFormat::e2m1 ? 2 : 1); }
};

constexpr bool has_tensor_scale(ScaleLayout layout) {
  return layout == ScaleLayout::tensor || layout == ScaleLayout::nv_16;
}
// Elements of a row with one scale; 1 for tensor.
constexpr int64_t scaled_depth(ScaleLayout layout) {
  constexpr int64_t kDepths[] = {1, 128, 128, 32, 16};
  return kDepths[static_cast<size_t>(layout)];
}
constexpr DType scale_type(ScaleLayout layout) {
  return layout < ScaleLayout::mx_32 ? DType::f32 : DType::u8;
}
// Not for tensor.
inline Shape scales_shape(ScaleLayout layout, int64_t rows, int64_t depth) {
  const int64_t blocks = ceil_div(depth, scaled_depth(layout));
  if (layout == ScaleLayout::vectors_128) return {blocks, rows};
  if (layout == ScaleLayout::squares_128) return {ceil_div(rows, 128), round_up(blocks, 4)};
  return {ceil_div(rows, 128), ceil_div(blocks, 4), 512};
}
// Where the scale of a row's block of elements is among them.
constexpr int64_t scale_index(ScaleLayout layout, int64_t rows, int64_t depth, int64_t row,
                              int64_t block) {
  const int64_t blocks = ceil_div(depth, scaled_depth(layout));
  if (layout == ScaleLayout::vectors_128) return block * rows + row;
  if (layout == ScaleLayout::squares_128) return row / 128 * round_up(blocks, 4) + block;
  const int64_t tile = row / 128 * ceil_div(blocks, 4) + block / 4;
  return tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
}
// The number that a stored scale stands for. stored: f32 or u8.
constexpr float scale_value(ScaleLayout, float stored) { return stored; }
constexpr float scale_value(ScaleLayout layout, uint8_t stored) {
  return layout == ScaleLayout::mx_32 ? e8m0_value(stored) : decode(LowFormat::e4m3, stored);
}

// out = the operand of x, [R,K] of bf16, contiguous; or of its transpose, if x is [K,R].
// Codes and scales are those of `quantize` by the rule of the layout: given, power_of_two (vectors
// and squares of 128), e8m0 or nvfp4. square: nv_16 has scales for 16 x 16 elements, and stores
// each in 16 rows. maxima, stochastic, noise and channels: as in QuantizeArgs, of x.
// transpose_out: the operand of out's transpose, from the same pass over x, or without codes; of
// the format, layout (tensor, vectors_128 or mx_32) and tensor_scale of out, without maxima and not
// stochastic.
struct EncodeOperandArgs {
  Tensor x;
  bool transposed = false, square = false;
  CodedOperand out, transpose_out = {};
  Tensor maxima = {};
  bool stochastic = false;
  NoiseRows noise = {};
  ChannelRuns channels = {};
};

// The call of `quantize` that finds the codes and scales of out, without its outputs.
QuantizeArgs quantization_of(const EncodeOperandArgs& args);
// The call for transpose_out alone.
EncodeOperandArgs for_transpose(EncodeOperandArgs args);

// out = a b^T + bias + beta * out.
//   a [M,K], b [N,K]   operands in e4m3, or one of them in e5m2, and both with the tensor's scale,
//                      both with mx_32, both with vectors_128, or one with these and the other with
//                      squares_128; or both in e2m1 with nv_16
//   out [M,N]          bf16 or f32; its row stride is free, but at least N
//   bias [N]           contiguous, of the type of out, or undefined
// M, N and K are multiples of kCodedStep, K of 2 kCodedStep in e2m1. Sums are f32 in an order fixed
// by the shape, and rounded once. beta is 0 or 1; with 0, out is not read.
struct CodedGemmArgs {
  CodedOperand a, b;
  Tensor out, bias;
  float beta = 0;
};
inline constexpr int64_t kCodedStep = 16;
constexpr int64_t depth_step(LowFormat format) {
  return format == LowFormat::e2m1 ? 2 * kCodedStep : kCodedStep;
}

void check(const EncodeOperandArgs& args);
void check(const CodedGemmArgs& args);

template <class F>
void visit(EncodeOperandArgs& a, F&& f) {
  f("sample_ids", Access::read, a.noise.tokens.sample_ids);
  f("positions", Access::read, a.noise.tokens.positions);
  f("x", Access::read, a.x);
  f("tensor_scale", Access::read, a.out.tensor_scale);
  f("maxima", Access::read, a.maxima);
  f("codes", Access::write, a.out.codes);
  f("scales", Access::write, a.out.scales);
  f("transpose_out.codes", Access::write, a.transpose_out.codes);
  f("transpose_out.scales", Access::write, a.transpose_out.scales);
}
template <class F>
void visit(CodedGemmArgs& a, F&& f) {
  f("a", Access::read, a.a.codes);
  f("b", Access::read, a.b.codes);
  f("a_scales", Access::read, a.a.scales);
  f("b_scales", Access::read, a.b.scales);
  f("a_scale", Access::read, a.a.tensor_scale);
  f("b_scale", Access::read, a.b.tensor_scale);
  f("bias", Access::read, a.bias);
  f("out", written(a.beta), a.out);
}

}  // namespace megatron::kernels
