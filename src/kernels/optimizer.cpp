#include "kernels/optimizer.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {
namespace {

void check_partials(const Rules& rules, const Tensor& partials) {
  rules.require(partials.defined() && partials.rank() == 1, "partials f64 [n]");
  rules.dense(partials, partials.shape(), DType::f64, "partials f64 [n]");
}

void check_master(const Rules& rules, const MasterWeight& parameter, const Tensor& grad) {
  rules.defined(parameter.value, "parameter value defined");
  const Tensor& value = parameter.value;
  rules.require(is_float_type(value) && value.dtype() != DType::f16 && value.is_contiguous(),
                "value f64, f32 or bf16, contiguous");
  rules.require(parameter.remainder.defined() == (value.dtype() == DType::bf16),
                "remainder with bf16 only");
  rules.optional(parameter.remainder, value.shape(), DType::i16,
                 "remainder i16 of the value's shape");
  rules.dense(grad, value.shape(), accumulator(value.dtype()),
              "grad f32 (f64) of the value's shape");
}

}  // namespace

void check(const GradScaleArgs& args) {
  const Rules rules("grad_scale", args);
  check_partials(rules, args.partials);
  rules.scalar(args.divisor, "divisor 0-d f64");
  rules.scalar(args.norm, "norm 0-d f64");
  rules.scalar(args.scale, "scale 0-d f64");
}

void check(const AdamArgs& args) {
  const Rules rules("adam", args);
  check_master(rules, args.parameter, args.grad);
  for (const Tensor* moment : {&args.exp_avg, &args.exp_avg_sq}) {
    const bool narrow =
        moment->defined() && (moment->dtype() == DType::bf16 || moment->dtype() == DType::u8);
    rules.dense(*moment, args.grad.shape(), narrow ? moment->dtype() : args.grad.dtype(),
                "exp_avg and exp_avg_sq as grad, bf16 or u8");
  }
  for (const Tensor* t : {&args.lr, &args.weight_decay, &args.step, &args.scale}) {
    rules.scalar(*t, "lr, weight_decay, step and scale 0-d f64");
  }
}

void check(const SgdArgs& args) {
  const Rules rules("sgd", args);
  check_master(rules, args.parameter, args.grad);
  rules.require(args.buffer.defined() == (args.momentum != 0), "a buffer with momentum only");
  rules.optional(args.buffer, args.grad.shape(), args.grad.dtype(), "buffer as grad");
  for (const Tensor* t : {&args.lr, &args.weight_decay, &args.step, &args.scale}) {
    rules.scalar(*t, "lr, weight_decay, step and scale 0-d f64");
  }
}

void check(const LionArgs& args) {
  const Rules rules("lion", args);
  check_master(rules, args.parameter, args.grad);
  rules.dense(args.exp_avg, args.grad.shape(), args.grad.dtype(), "exp_avg as grad");
  for (const Tensor* t : {&args.lr, &args.weight_decay, &args.scale})
    rules.scalar(*t, "lr, weight_decay and scale 0-d f64");
}

void check(const MuonMomentumArgs& args) {
  const Rules rules("muon_momentum", args);
  rules.require(args.grad.defined() && args.grad.is_contiguous() && is_wide(args.grad),
                "grad f32 or f64, contiguous");
  rules.dense(args.momentum, args.grad.shape(), args.grad.dtype(), "momentum as grad");
  rules.dense(args.direction, args.grad.shape(), args.grad.dtype(), "direction as grad");
  rules.scalar(args.scale, "scale 0-d f64");
}

void check(const UnitNormArgs& args) {
  const Rules rules("unit_norm", args);
  rules.require(args.x.defined() && args.x.is_contiguous() && is_wide(args.x),
                "x f32 or f64, contiguous");
  const bool narrow = args.out.defined() && args.out.dtype() == DType::bf16;
  rules.dense(args.out, args.x.shape(), narrow ? DType::bf16 : args.x.dtype(), "out as x, or bf16");
  check_partials(rules, args.partials);
}

void check(const WeightedSumArgs& args) {
  const Rules rules("weighted_sum", args);
  rules.require(args.x.defined() && args.y.defined() && args.out.defined(), "x, y and out defined");
  for (const Tensor* t : {&args.x, &args.y, &args.out}) {
    rules.require(t->is_contiguous() && t->shape() == args.x.shape() &&
                      (is_wide(*t) || t->dtype() == DType::bf16) &&
                      (t->dtype() == DType::f64) == (args.x.dtype() == DType::f64),
                  "one shape, contiguous, f32 or bf16, or all f64");
  }
}

}  // namespace megatron::kernels
