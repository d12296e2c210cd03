#include "kernels/activation.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {
namespace {

template <class Args>
void check_activation(const Rules& rules, const Args& args, const Tensor& x, const Tensor& out) {
  const bool gated = args.gated;
  rules.require(gated || (args.clamp == 0 && args.up_offset == 0),
                "clamp and offset of a gated block");
  rules.floats(x, 2, "x contiguous of rank 2");
  rules.require(!gated || x.size(1) % 2 == 0, "gated x [T,2F]");
  rules.dense(out, {x.size(0), gated ? x.size(1) / 2 : x.size(1)}, x.dtype(),
              "out [T,F] of the type of x");
}

}  // namespace

void check(const ActivationArgs& args) {
  check_activation(Rules("activation", args), args, args.x, args.out);
}

void check(const ActivationBackwardArgs& args) {
  const Rules rules("activation_backward", args);
  check_activation(rules, args, args.x, args.dout);
  rules.dense(args.dx, args.x.shape(), args.x.dtype(), "dx as x");
}

}  // namespace megatron::kernels
