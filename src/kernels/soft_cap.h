// Soft capping of logits (Gemma Team 2024, section 2).
#pragma once

#include "kernels/elements.h"

namespace megatron::kernels {

// out = cap * tanh(x / cap), in f32 (f64 for f64); cap > 0. x, out contiguous, of one shape and
// floating type; out may be x.
struct SoftCapArgs {
  double cap = 0;
  Tensor x, out;

  static constexpr auto kElements =
      elements("soft_cap", ElementLayout::contiguous, input("x", &SoftCapArgs::x),
               output("out", &SoftCapArgs::out, &SoftCapArgs::x));
  const char* broken() const { return cap > 0 ? nullptr : "cap above 0"; }
};

// dx = dout * (1 - (out / cap)^2), where `out` is the capped value, f32 (f64 for f64). dout, dx
// contiguous, of one shape and of one type: any of f32/bf16/f16 (f64 for f64). dx may be dout.
struct SoftCapBackwardArgs {
  double cap = 0;
  Tensor out, dout, dx;

  static constexpr auto kElements = elements(
      "soft_cap_backward", ElementLayout::contiguous,
      input("out", &SoftCapBackwardArgs::out).wide(), input("dout", &SoftCapBackwardArgs::dout),
      output("dx", &SoftCapBackwardArgs::dx, &SoftCapBackwardArgs::dout));
  const char* broken() const { return cap > 0 ? nullptr : "cap above 0"; }
};

}  // namespace megatron::kernels
