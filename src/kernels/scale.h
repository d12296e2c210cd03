// A tensor times a constant.
#pragma once

#include "kernels/access.h"

namespace megatron::kernels {

// out = factor * x, the product in f32 (f64 for f64), rounded once. x, out contiguous, of one shape and
// floating type; out may be x.
struct ScaleArgs {
  double factor = 1;
  Tensor x, out;
};

void check(const ScaleArgs& args);

template <class F>
void visit(ScaleArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("out", Access::write, a.out);
}

}  // namespace megatron::kernels
