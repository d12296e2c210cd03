#include "kernels/squared_error.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {

void check(const SquaredErrorArgs& args) {
  const Rules rules("squared_error", {{"x", args.x},
                                      {"targets", args.targets},
                                      {"weights", args.weights},
                                      {"loss", args.loss},
                                      {"dx", args.dx}});
  rules.defined(args.x, "x");
  const Shape& shape = args.x.shape();
  rules.require(is_float_type(args.x) && shape.rank() == 1 && args.x.is_contiguous(),
                "x [T], contiguous, of a floating type");
  const DType wide = accumulator(args.x.dtype());
  rules.dense(args.targets, shape, wide, "targets f32 (f64) [T]");
  rules.dense(args.weights, shape, wide, "weights f32 (f64) [T]");
  rules.dense(args.loss, shape, wide, "loss f32 (f64) [T]");
  if (args.dx.defined()) rules.dense(args.dx, shape, args.x.dtype(), "dx as x");
}

}  // namespace megatron::kernels
