// A tensor times a constant.
#pragma once

#include "kernels/elements.h"

namespace megatron::kernels {

// out = factor * x, the product in f32 (f64 for f64), rounded once. x, out contiguous, of one shape
// and floating type; out may be x.
struct ScaleArgs {
  double factor = 1;
  Tensor x, out;

  static constexpr auto kElements =
      elements("scale", ElementLayout::contiguous, input("x", &ScaleArgs::x),
               output("out", &ScaleArgs::out, &ScaleArgs::x));
};

}  // namespace megatron::kernels
