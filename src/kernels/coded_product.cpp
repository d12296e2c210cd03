#include "kernels/coded_product.h"

#include <utility>

#include "kernels/check_rules.h"

namespace megatron::kernels {
namespace {

// rows, depth: of the operand.
void check_operand(const Rules& rules, const CodedOperand& operand, int64_t rows, int64_t depth) {
  const bool fp4 = operand.format == LowFormat::e2m1;
  rules.require(fp4 == (operand.layout == ScaleLayout::nv_16), "e2m1 with nv_16, and only with it");
  rules.require(!fp4 || depth % 2 == 0, "an even K for e2m1");
  rules.dense(operand.codes, {rows, fp4 ? depth / 2 : depth}, DType::u8, "codes u8 of [R,K]");
  if (has_tensor_scale(operand.layout))
    rules.dense(operand.tensor_scale, {}, DType::f32, "tensor_scale f32 0-d");
  else rules.require(!operand.tensor_scale.defined(), "no scale of the tensor with this layout");
  if (operand.layout == ScaleLayout::tensor)
    rules.require(!operand.scales.defined(), "no scales of blocks with the tensor's");
  else
    rules.dense(operand.scales, scales_shape(operand.layout, rows, depth),
                scale_type(operand.layout), "scales in their layout");
}

bool go_together(ScaleLayout a, ScaleLayout b) {
  using enum ScaleLayout;
  return a == b ? a != squares_128
                : (a == vectors_128 && b == squares_128) || (a == squares_128 && b == vectors_128);
}

}  // namespace

QuantizeArgs quantization_of(const EncodeOperandArgs& args) {
  QuantizeArgs same{.format = args.out.format,
                    .x = args.x,
                    .scale = args.out.tensor_scale,
                    .maxima = args.maxima,
                    .stochastic = args.stochastic,
                    .noise = args.noise,
                    .channels = args.channels};
  const int64_t along = scaled_depth(args.out.layout);
  bool square = args.square;
  switch (args.out.layout) {
    case ScaleLayout::tensor: break;
    case ScaleLayout::squares_128: square = true; [[fallthrough]];
    case ScaleLayout::vectors_128: same.rule = BlockScale::power_of_two; break;
    case ScaleLayout::mx_32: same.rule = BlockScale::e8m0; break;
    case ScaleLayout::nv_16: same.rule = BlockScale::nvfp4; break;
  }
  same.out.rows = args.transposed || square ? along : 1;
  same.out.columns = !args.transposed || square ? along : 1;
  return same;
}

EncodeOperandArgs for_transpose(EncodeOperandArgs args) {
  args.transposed = !args.transposed;
  args.out = std::exchange(args.transpose_out, {});
  return args;
}

void check(const EncodeOperandArgs& args) {
  const Rules rules("encode_operand", args);
  rules.floats(args.x, 2, "x [R,K] or [K,R] contiguous");
  rules.require(args.x.dtype() == DType::bf16, "x of bf16");
  const int across = args.transposed ? 1 : 0;
  check_operand(rules, args.out, args.x.size(across), args.x.size(1 - across));
  rules.require(!args.square || args.out.layout == ScaleLayout::nv_16, "square with nv_16 only");
  check(quantization_of(args));
  if (!args.transpose_out.codes.defined()) return;
  const ScaleLayout layout = args.out.layout;
  check_operand(rules, args.transpose_out, args.x.size(1 - across), args.x.size(across));
  const Tensor &scale = args.out.tensor_scale, &same = args.transpose_out.tensor_scale;
  rules.require(!scale.defined() ||
                    (scale.storage_id() == same.storage_id() && scale.offset() == same.offset()),
                "one scale of the tensor");
  rules.require(args.transpose_out.format == args.out.format &&
                    args.transpose_out.layout == layout && layout != ScaleLayout::squares_128 &&
                    layout != ScaleLayout::nv_16 && !args.maxima.defined() && !args.stochastic,
                "two directions of one format and layout: tensor, vectors_128 or mx_32");
}

void check(const CodedGemmArgs& args) {
  const Rules rules("coded_gemm", args);
  rules.require(args.a.codes.defined() && args.b.codes.defined() && args.out.defined(),
                "a, b and out defined");
  rules.require(args.a.codes.rank() == 2 && args.b.codes.rank() == 2 && args.out.rank() == 2,
                "2-D");
  const int64_t m = args.a.rows(), k = args.a.depth(), n = args.b.rows();
  check_operand(rules, args.a, m, k);
  check_operand(rules, args.b, n, k);
  rules.require(m % kCodedStep == 0 && n % kCodedStep == 0 && k % depth_step(args.a.format) == 0,
                "M, N and K are multiples of 16, K of 32 in e2m1");
  rules.require(args.a.format != LowFormat::e5m2 || args.b.format != LowFormat::e5m2,
                "e4m3 and e4m3 or e5m2, or e2m1 and e2m1");
  rules.require(go_together(args.a.layout, args.b.layout), "scales that go together");
  rules.require(args.out.size(0) == m && args.out.size(1) == n, "out is [M,N]");
  rules.require(args.out.dtype() == DType::bf16 || args.out.dtype() == DType::f32,
                "out of bf16 or f32");
  rules.require(last_is_dense(args.out) && (m <= 1 || args.out.stride(0) >= n),
                "rows of out dense and apart");
  rules.require(args.beta == 0 || args.beta == 1, "beta is 0 or 1");
  rules.optional(args.bias, {n}, args.out.dtype(), "bias [N] of the type of out");
}

}  // namespace megatron::kernels
