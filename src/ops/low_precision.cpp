#include "ops/low_precision.h"

#include "base/error.h"

namespace megatron::ops {
namespace {

// 448 * 6, the largest block scale in e4m3 times the largest number of e2m1.
constexpr double kLargestFp4 = 2688;

class Quantiser {
 public:
  // sums_tokens: for the product of a weight's gradient.
  Quantiser(const LowPrecision& how, Tape& tape, bool sums_tokens)
      : how_(how), tape_(tape), sums_tokens_(sums_tokens) {}

  // axis: of x, over which the product sums. scale: set if the values do not include it. groups: of
  // rows, or undefined.
  Tensor operator()(const Tensor& x, Operand operand, int axis, Tensor& scale,
                    const Tensor& groups = {}) const {
    const LowPrecisionFormats& formats = how_.formats;
    kernels::QuantizeArgs args;
    args.format = operand == Operand::gradient ? formats.gradient : formats.forward;
    args.x = x.is_contiguous() ? x : copied(x);
    args.first.values = tape_.empty(x.shape(), x.dtype(), "quantized");
    const auto along = [&](int64_t block) {
      args.first.rows = axis == 0 ? block : 1;
      args.first.columns = axis == 0 ? 1 : block;
    };
    const auto square = [&](int64_t block) { args.first.rows = args.first.columns = block; };
    switch (formats.recipe) {
      case LowPrecisionRecipe::tensorwise:
        args.scale = scale = tensor_scale(args.x, operand, facts_of(args.format).largest);
        break;
      case LowPrecisionRecipe::delayed:
        args.scale = scale = how_.scales->select(0, static_cast<int64_t>(operand));
        observe(args.x, operand);
        break;
      case LowPrecisionRecipe::blockwise:
        args.rule = kernels::BlockScale::power_of_two;
        operand == Operand::weight ? square(128) : along(128);
        break;
      case LowPrecisionRecipe::mxfp8:
        args.rule = kernels::BlockScale::e8m0;
        along(32);
        break;
      case LowPrecisionRecipe::nvfp4:
        args.rule = kernels::BlockScale::nvfp4;
        operand == Operand::weight ? square(16) : along(16);
        if (sums_tokens_) args.x = rotated(args.x);
        args.scale = scale = tensor_scale(args.x, operand, kLargestFp4);
        if (operand == Operand::gradient) round_by_chance(args);
        break;
    }
    if (args.first.rows > 1) args.row_groups = groups;
    tape_.kernels().quantize(args, tape_.stream());
    return args.first.values;
  }

 private:
  Tensor copied(const Tensor& x) const {
    Tensor copy = tape_.empty(x.shape(), x.dtype(), "quantized.x");
    tape_.kernels().copy({.x = x, .out = copy}, tape_.stream());
    return copy;
  }

  // Rows beyond the last 16 whole ones stay: the other operand's do, too.
  Tensor rotated(const Tensor& x) const {
    const int64_t rows = x.size(0), whole = rows / kernels::kHadamardRows * kernels::kHadamardRows;
    Tensor out = tape_.empty(x.shape(), x.dtype(), "quantized.rotated");
    tape_.kernels().hadamard({.x = x.slice(0, 0, whole), .out = out.slice(0, 0, whole)},
                             tape_.stream());
    if (whole < rows)
      tape_.kernels().copy(
          {.x = x.slice(0, whole, rows - whole), .out = out.slice(0, whole, rows - whole)},
          tape_.stream());
    return out;
  }

  void round_by_chance(kernels::QuantizeArgs& args) const {
    const LowPrecision::Chances& chances = how_.chances;
    MG_ASSERT(tape_.batch_rows());
    const Tape::BatchRows& batch = *tape_.batch_rows();
    args.stochastic = true;
    args.noise = {.seed = chances.seed,
                  .stream = sums_tokens_ ? chances.of_weights : chances.of_inputs,
                  .tokens = batch.tokens};
    if (chances.first_row) args.noise.tokens.first = chances.first_row(batch.rows);
    args.channels = chances.channels;
  }

  // The maximum of repeated observations is the same: recomputation changes nothing.
  void observe(const Tensor& x, Operand operand) const {
    if (tape_.pass() == Pass::evaluate || !how_.maxima->defined()) return;
    tape_.kernels().amax(
        {.x = x, .out = {.out = how_.maxima->select(0, static_cast<int64_t>(operand)), .beta = 1}},
        tape_.stream());
  }

  Tensor tensor_scale(const Tensor& x, Operand operand, double largest) const {
    Tensor amax = tape_.empty({}, DType::f32, "amax"), scale = tape_.empty({}, DType::f32, "scale");
    tape_.kernels().amax({.x = x, .out = {.out = amax}}, tape_.stream());
    if (how_.of_parts && how_.divided[static_cast<size_t>(operand)])
      how_.of_parts(amax, tape_.stream());
    tape_.kernels().tensor_scale({.largest = largest, .amax = amax, .scale = scale},
                                 tape_.stream());
    return scale;
  }

  const LowPrecision& how_;
  Tape& tape_;
  bool sums_tokens_;
};

}  // namespace

const LowPrecision* quantization_of(const Weight& weight, bool of_weight_gradient) {
  const auto& how = weight.parameter->low_precision;
  const bool quantizes =
      how && how->active && (!of_weight_gradient || how->formats.weight_gradients);
  return quantizes ? &*how : nullptr;
}

kernels::GemmArgs quantized(kernels::GemmArgs call, Operand a, Operand b, const Weight& weight,
                            Tape& tape) {
  const bool of_weight = a != Operand::weight && b != Operand::weight;
  const LowPrecision* const how = quantization_of(weight, of_weight);
  if (how == nullptr) return call;
  if (call.bias_gradient.out.defined()) {
    tape.kernels().column_sum({.x = call.a, .out = call.bias_gradient}, tape.stream());
    call.bias_gradient = {};
  }
  const Quantiser quantise(*how, tape, of_weight);
  call.a = quantise(call.a, a, call.transpose_a ? 0 : 1, call.a_scale);
  call.b = quantise(call.b, b, call.transpose_b ? 1 : 0, call.b_scale);
  return call;
}

Tensor quantized(const Tensor& x, Operand operand, int axis, const Weight& weight, Tape& tape) {
  const LowPrecision* const how = quantization_of(weight, false);
  if (how == nullptr) return x;
  Tensor scale;
  Tensor values = Quantiser(*how, tape, false)(x, operand, axis, scale);
  MG_ASSERT(!scale.defined());
  return values;
}

kernels::GroupedGemmArgs quantized(kernels::GroupedGemmArgs call, Operand a, const Weight& weight,
                                   Tape& tape) {
  const LowPrecision* const how = quantization_of(weight, false);
  if (how == nullptr) return call;
  const Quantiser quantise(*how, tape, false);
  const Shape shape = call.b.shape();
  const Tensor matrix = call.b.view({shape[0] * shape[1], shape[2]});
  call.a = quantise(call.a, a, 1, call.a_scale);
  call.b = quantise(matrix, Operand::weight, call.transpose_b ? 1 : 0, call.b_scale).view(shape);
  return call;
}

kernels::GroupedGradientArgs quantized(kernels::GroupedGradientArgs call, const Weight& weight,
                                       Tape& tape) {
  const LowPrecision* const how = quantization_of(weight, true);
  if (how == nullptr) return call;
  MG_ASSERT(!call.dbias.out.defined());
  const Quantiser quantise(*how, tape, true);
  call.dy = quantise(call.dy, Operand::gradient, 0, call.dy_scale, call.offsets);
  call.x = quantise(call.x, Operand::activation, 0, call.x_scale, call.offsets);
  return call;
}

}  // namespace megatron::ops
