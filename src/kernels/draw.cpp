#include "kernels/draw.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {

void check(const DrawArgs& args) {
  const Rules rules("draw", args);
  rules.require(args.out.defined() && args.out.rank() == 2 && is_float_type(args.out) &&
                    (args.out.stride(1) == 1 || args.out.size(1) <= 1) && args.out.stride(0) >= 0,
                "out [rows,columns] of a floating type, columns side by side");
  rules.require(args.first >= 0 && args.step >= 0, "first and step not below 0");
}

}  // namespace megatron::kernels
