#include "kernels/soft_cap.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {

void check(const SoftCapArgs& args) {
  const Rules rules("soft_cap", {{"x", args.x}, {"out", args.out}});
  rules.require(args.cap > 0, "cap above 0");
  rules.defined(args.x, "x");
  rules.require(is_float_type(args.x) && args.x.is_contiguous(),
                "x contiguous, of a floating type");
  rules.dense(args.out, args.x.shape(), args.x.dtype(), "out as x");
}

void check(const SoftCapBackwardArgs& args) {
  const Rules rules("soft_cap_backward", {{"out", args.out}, {"dout", args.dout}, {"dx", args.dx}});
  rules.require(args.cap > 0, "cap above 0");
  rules.defined(args.dout, "dout");
  rules.require(is_float_type(args.dout) && args.dout.is_contiguous(),
                "dout contiguous, of a floating type");
  rules.dense(args.out, args.dout.shape(), accumulator(args.dout.dtype()),
              "out f32 (f64 for f64), of the shape of dout");
  rules.dense(args.dx, args.dout.shape(), args.dout.dtype(), "dx as dout");
}

}  // namespace megatron::kernels
