#include "kernels/scale.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {

void check(const ScaleArgs& args) {
  const Rules rules("scale", {{"x", args.x}, {"out", args.out}});
  rules.defined(args.x, "x");
  rules.require(is_float_type(args.x) && args.x.is_contiguous(),
                "x contiguous, of a floating type");
  rules.dense(args.out, args.x.shape(), args.x.dtype(), "out as x");
}

}  // namespace megatron::kernels
