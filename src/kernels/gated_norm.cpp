#include "kernels/gated_norm.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {
namespace {

void check_like_x(const Rules& rules, const Tensor& t, const Tensor& x, const char* rule) {
  rules.rows(t, 2, rule);
  rules.require(t.shape() == x.shape() && t.dtype() == x.dtype(), rule);
}

template <class Args>
void check_inputs(const Rules& rules, const Args& args) {
  rules.rows(args.x, 2, "x [T,W] of a floating type, last dim contiguous");
  const int64_t tokens = args.x.size(0), width = args.x.size(1);
  check_like_x(rules, args.z, args.x, "z as x");
  rules.require(args.groups > 0 && width % args.groups == 0, "groups divide W");
  if (args.order == GateOrder::gate_only) {
    rules.require(!args.weight.defined() && !args.rstd.defined(),
                  "no weight and no rstd for gate_only");
    return;
  }
  rules.dense(args.weight, {width}, args.x.dtype(), "weight [W] of the type of x");
  rules.dense(args.rstd, {tokens, args.groups}, accumulator(args.x.dtype()),
              "rstd f32 (f64) [T,G]");
}

}  // namespace

void check(const GatedNormArgs& args) {
  const Rules rules("gated_norm", args);
  check_inputs(rules, args);
  rules.require(args.eps >= 0, "eps >= 0");
  check_like_x(rules, args.out, args.x, "out as x");
}

void check(const GatedNormBackwardArgs& args) {
  const Rules rules("gated_norm_backward", args);
  check_inputs(rules, args);
  check_like_x(rules, args.dout, args.x, "dout as x");
  check_like_x(rules, args.dx, args.x, "dx as x");
  check_like_x(rules, args.dz, args.x, "dz as x");
  rules.optional(args.dweight, {args.x.size(1)}, accumulator(args.x.dtype()),
                 "dweight f32 (f64) [W]");
  rules.require(args.order != GateOrder::gate_only || !args.dweight.out.defined(),
                "no dweight for gate_only");
}

}  // namespace megatron::kernels
