#include "kernels/quantize.h"

#include "base/divide.h"
#include "kernels/check_rules.h"

namespace megatron::kernels {
namespace {

bool is_number(const Tensor& t) {
  return t.defined() && t.shape() == Shape{} && t.dtype() == DType::f32;
}

void check_blocks(const Rules& rules, const QuantizeArgs& args) {
  const QuantizedBlocks& blocks = args.out;
  constexpr int64_t kMost = 128;
  const auto is_size = [](int64_t n) { return n > 0 && n <= kMost && (n & (n - 1)) == 0; };
  rules.require(is_size(blocks.rows) && is_size(blocks.columns),
                "rows and columns of a block are powers of two up to 128");
  rules.optional(blocks.values, args.x.shape(), args.x.dtype(), "values as x");
  rules.optional(blocks.codes, args.x.shape(), DType::u8, "codes u8 [R,C]");
  const Shape grid{ceil_div(args.x.size(0), blocks.rows), ceil_div(args.x.size(1), blocks.columns)};
  const bool exponents = args.rule != BlockScale::power_of_two;
  rules.optional(blocks.scales, grid, exponents ? DType::u8 : DType::f32, "scales of the blocks");
  rules.optional(args.maxima, grid, DType::f32, "maxima f32 of the blocks");
  rules.require(
      args.rule != BlockScale::given || !(blocks.scales.defined() || args.maxima.defined()),
      "no scales of blocks with the tensor's");
}

void check_row_groups(const Rules& rules, const Tensor& groups) {
  if (!groups.defined()) return;
  rules.dense(groups, {groups.elements()}, DType::i32, "row_groups i32 [G+1]");
  rules.require(groups.elements() > 1, "at least one group of rows");
}

void check_groups(const Rules& rules, const QuantizeArgs& args) {
  check_row_groups(rules, args.row_groups);
  if (!args.row_groups.defined()) return;
  rules.require(args.out.columns == 1 && !args.out.codes.defined() && !args.out.scales.defined() &&
                    !args.maxima.defined(),
                "values of columns of groups of rows");
}

void check_channels(const Rules& rules, const ChannelRuns& channels) {
  rules.require(channels.count >= 0 && channels.count <= ChannelRuns::kMost,
                "8 runs of channels at most");
  for (int i = 0; i < channels.count; ++i) {
    const auto& [column, channel] = channels.runs[i];
    const int64_t before = i == 0 ? -1 : channels.runs[i - 1].column;
    rules.require(column % 4 == 0 && channel % 4 == 0 && (i == 0 ? column == 0 : column > before),
                  "runs of channels begin at 0 and ascend by multiples of 4");
  }
}

}  // namespace

void check(const AmaxArgs& args) {
  const Rules rules("amax", args);
  rules.floats(args.x, 2, "x [R,C] contiguous");
  rules.sum(args.out, {}, DType::f32, "out f32 0-d");
}

void check(const TensorScaleArgs& args) {
  const Rules rules("tensor_scale", args);
  rules.require(is_number(args.amax) && is_number(args.scale), "amax and scale f32 0-d");
  rules.require(args.largest > 0, "largest > 0");
  rules.require(args.margin >= -127 && args.margin <= 149, "a margin from -127 to 149");
  if (!args.history.defined()) return;
  rules.dense(args.history, {args.history.elements()}, DType::f32, "history f32 [H]");
  rules.require(args.delayed, "a history with delayed scales only");
}

void check(const QuantizeArgs& args) {
  const Rules rules("quantize", args);
  rules.floats(args.x, 2, "x [R,C] contiguous");
  rules.require(args.x.dtype() != DType::f16, "x of bf16, f32 (f64)");
  const bool fp4 = args.rule == BlockScale::nvfp4 || args.rule == BlockScale::nvfp4_quotient;
  rules.require(!(fp4 || args.stochastic) || args.format == LowFormat::e2m1, "e2m1");
  rules.require(!(fp4 || args.rule == BlockScale::given) || is_number(args.scale), "scale f32 0-d");
  check_blocks(rules, args);
  if (args.stochastic) check_row_tokens(rules, args.noise.tokens, args.x.size(0));
  check_channels(rules, args.channels);
  check_groups(rules, args);
}

void check(const HadamardArgs& args) {
  const Rules rules("hadamard", args);
  rules.floats(args.x, 2, "x [R,C] contiguous");
  check_row_groups(rules, args.row_groups);
  rules.dense(args.out, args.x.shape(), args.x.dtype(), "out as x");
}

}  // namespace megatron::kernels
