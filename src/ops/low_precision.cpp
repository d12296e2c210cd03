#include "ops/low_precision.h"

#include "base/error.h"
#include "kernels/coded_product.h"
#include "kernels/epilogue.h"

namespace megatron::ops {
namespace {

class Quantiser {
 public:
  // sums_tokens: for the product of a weight's gradient.
  Quantiser(const LowPrecision& how, Tape& tape, bool sums_tokens)
      : how_(how), tape_(tape), sums_tokens_(sums_tokens) {}

  // The values of x, quantised along `axis`, over which the product sums. scale: the tensor's if it
  // is known; then that which the values do not include. groups: of rows, or undefined. height:
  // rows of a block end after this many; 0: after all.
  Tensor operator()(const Tensor& x, Operand operand, int axis, Tensor& scale,
                    const Tensor& groups = {}, int64_t height = 0) const {
    const kernels::EncodeOperandArgs how = prepared(x, operand, axis, scale, groups);
    scale = how.out.tensor_scale;
    kernels::QuantizeArgs args = kernels::quantization_of(how);
    if (args.out.rows > 1) args.row_groups = groups;
    const Tensor values = tape_.empty(x.shape(), x.dtype(), "quantized");
    const int64_t rows = x.size(0), step = height % args.out.rows == 0 ? rows : height;
    for (int64_t first = 0; first < rows; first += step) {
      args.x = how.x.slice(0, first, step);
      args.out.values = values.slice(0, first, step);
      tape_.kernels().quantize(args, tape_.stream());
    }
    return values;
  }

  // The same as codes with their scales. other: receives those along the other axis; null: none.
  kernels::CodedOperand encoded(const Tensor& x, Operand operand, int axis, const Tensor& scale,
                                kernels::CodedOperand* other) const {
    kernels::EncodeOperandArgs args = prepared(x, operand, axis, scale, {});
    const auto with_room = [&](kernels::CodedOperand to, int along) {
      const int64_t rows = x.size(1 - along), depth = x.size(along);
      to.codes = tape_.empty({rows, to.format == LowFormat::e2m1 ? depth / 2 : depth}, DType::u8,
                             "quantized");
      if (to.layout != kernels::ScaleLayout::tensor)
        to.scales = tape_.empty(kernels::scales_shape(to.layout, rows, depth),
                                kernels::scale_type(to.layout), "quantized.scales");
      return to;
    };
    if (other != nullptr) args.transpose_out = *other = with_room(args.out, 1 - axis);
    args.out = with_room(args.out, axis);
    tape_.kernels().encode_operand(args, tape_.stream());
    return args.out;
  }

 private:
  LowFormat format_of(Operand operand) const {
    return operand == Operand::gradient ? how_.formats.gradient : how_.formats.forward;
  }

  kernels::ScaleLayout layout_of(Operand operand) const {
    using enum kernels::ScaleLayout;
    switch (how_.formats.recipe) {
      case LowPrecisionRecipe::tensorwise:
      case LowPrecisionRecipe::delayed: break;
      case LowPrecisionRecipe::blockwise:
        return operand == Operand::weight ? squares_128 : vectors_128;
      case LowPrecisionRecipe::mxfp8: return mx_32;
      case LowPrecisionRecipe::nvfp4: return nv_16;
    }
    return tensor;
  }

  // Everything but the outputs. scale: of the tensor, if it is known.
  kernels::EncodeOperandArgs prepared(const Tensor& x, Operand operand, int axis,
                                      const Tensor& scale, const Tensor& groups) const {
    kernels::EncodeOperandArgs args{.x = x.is_contiguous() ? x : copied(x),
                                    .transposed = axis == 0};
    args.out.format = format_of(operand);
    args.out.layout = layout_of(operand);
    if (how_.formats.is_of_tensors())
      args.out.tensor_scale = scale.defined() ? scale : scale_of_whole(args.x, operand);
    if (how_.formats.recipe != LowPrecisionRecipe::nvfp4) return args;
    if (sums_tokens_) args.x = rotated(args.x, groups);
    args.out.tensor_scale = scale_of_blocks(args.x, operand);
    args.square = operand == Operand::weight;
    if (args.square) args.maxima = how_.weight_maxima;
    if (operand == Operand::gradient) round_by_chance(args);
    return args;
  }

  // Recipe tensorwise or delayed.
  Tensor scale_of_whole(const Tensor& x, Operand operand) const {
    const bool weight = operand == Operand::weight;
    if (how_.formats.recipe == LowPrecisionRecipe::tensorwise)
      return weight && how_.weight_scale.defined()
                 ? how_.weight_scale
                 : tensor_scale(x, operand, facts_of(format_of(operand)).largest);
    observe(weight && how_.weight_amax.defined() ? how_.weight_amax.view({1, 1}) : x, operand);
    return how_.scales->select(0, static_cast<int64_t>(operand));
  }

  // Recipe nvfp4.
  Tensor scale_of_blocks(const Tensor& x, Operand operand) const {
    const bool known = operand == Operand::weight && how_.weight_scale.defined();
    return known ? how_.weight_scale : tensor_scale(x, operand, kLargestFp4);
  }

  Tensor copied(const Tensor& x) const {
    Tensor copy = tape_.empty(x.shape(), x.dtype(), "quantized.x");
    tape_.kernels().copy({.x = x, .out = copy}, tape_.stream());
    return copy;
  }

  // Rows beyond the last 16 whole ones stay: the other operand's do, too.
  Tensor rotated(const Tensor& x, const Tensor& groups) const {
    Tensor out = tape_.empty(x.shape(), x.dtype(), "quantized.rotated");
    tape_.kernels().hadamard({.x = x, .out = out, .row_groups = groups}, tape_.stream());
    return out;
  }

  void round_by_chance(kernels::EncodeOperandArgs& args) const {
    const LowPrecision::Chances& chances = how_.chances;
    MG_ASSERT(tape_.batch_rows());
    const BatchRows& batch = *tape_.batch_rows();
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

// Returns true if coded_gemm can compute the call, except for its epilogue. Tensor cores read and
// write 16 bytes at a time.
bool fits_coded_gemm(const kernels::GemmArgs& call, LowFormat format) {
  const auto is_whole = [](int64_t n) { return n > 0 && n % kernels::kCodedStep == 0; };
  const Tensor& out = call.out;
  const int64_t depth = call.a.size(call.transpose_a ? 0 : 1);
  return call.a.dtype() == DType::bf16 && is_whole(out.size(0)) && is_whole(out.size(1)) &&
         depth > 0 && depth % kernels::depth_step(format) == 0 && is_whole(out.stride(0)) &&
         out.offset() * size_of(out.dtype()) % 16 == 0 &&
         (!call.bias.defined() || call.bias.dtype() == out.dtype());
}

// What the product of an input's gradient leaves for that of the weight's gradient.
struct SharedGradient {
  Tensor of, scale, values;
  kernels::CodedOperand codes;

  bool is_of(const Tensor& t) const {
    return of.defined() && of.storage_id() == t.storage_id() && of.offset() == t.offset() &&
           of.shape() == t.shape();
  }
};

// Both products of a gradient in fp4 read other numbers: those of the weight's are rotated.
bool shares_gradient(const LowPrecision& how, const Weight& weight) {
  return how.formats.recipe != LowPrecisionRecipe::nvfp4 && how.formats.weight_gradients &&
         weight.trainable();
}

}  // namespace

const LowPrecision* quantization_of(const Weight& weight, bool of_weight_gradient) {
  const auto& how = weight.parameter->low_precision;
  const bool quantizes =
      how && how->active && (!of_weight_gradient || how->formats.weight_gradients);
  return quantizes ? &*how : nullptr;
}

void multiply(kernels::GemmArgs call, Operand a, Operand b, const Weight& weight, Tape& tape,
              std::any* for_wgrad) {
  const bool of_weight = a != Operand::weight && b != Operand::weight;
  const LowPrecision* const how = quantization_of(weight, of_weight);
  if (how == nullptr) return tape.kernels().gemm(call, tape.stream());
  if (call.bias_gradient.out.defined()) {
    tape.kernels().column_sum({.x = call.a, .out = call.bias_gradient}, tape.stream());
    call.bias_gradient = {};
  }
  SharedGradient shared;
  const bool gives = for_wgrad != nullptr && !of_weight && shares_gradient(*how, weight);
  if (for_wgrad != nullptr && of_weight && for_wgrad->has_value()) {
    shared = std::any_cast<SharedGradient>(std::exchange(*for_wgrad, {}));
    if (!shared.is_of(call.a)) shared = {};
  }
  const Quantiser quantise(*how, tape, of_weight);
  const int axis_a = call.transpose_a ? 0 : 1, axis_b = call.transpose_b ? 1 : 0;
  const Tensor gradient = call.a;
  if (how->codes && fits_coded_gemm(call, how->formats.forward)) {
    kernels::CodedOperand operand = shared.codes;
    if (!operand.codes.defined())
      operand = quantise.encoded(call.a, a, axis_a, shared.scale, gives ? &shared.codes : nullptr);
    tape.kernels().coded_gemm({.a = operand,
                               .b = quantise.encoded(call.b, b, axis_b, {}, nullptr),
                               .out = kernels::sums_of(call),
                               .bias = call.bias,
                               .beta = call.beta},
                              tape.stream());
    kernels::finish_gemm(call, tape.kernels(), tape.stream());
    shared.scale = operand.tensor_scale;
  } else {
    call.a_scale = shared.scale;
    call.a = shared.values.defined() ? shared.values : quantise(call.a, a, axis_a, call.a_scale);
    call.b = quantise(call.b, b, axis_b, call.b_scale);
    tape.kernels().gemm(call, tape.stream());
    shared.scale = call.a_scale;
    if (how->formats.is_of_tensors()) shared.values = call.a;
  }
  if (!gives || !(shared.scale.defined() || shared.codes.codes.defined())) return;
  shared.of = gradient;
  *for_wgrad = std::move(shared);
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
  // Blocks end with an expert.
  call.b = quantise(matrix, Operand::weight, call.transpose_b ? 1 : 0, call.b_scale, {}, shape[1])
               .view(shape);
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
