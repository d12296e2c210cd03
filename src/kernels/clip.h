// Clips values to an interval (clip_qkv of DBRX and OLMoE).
#pragma once

#include "kernels/elements.h"

namespace megatron::kernels {

// out = min(max(x, -limit), limit), limit > 0; NaN is preserved. x, out [T,N], last dim contiguous,
// any row stride, of one shape and floating type; out may be x.
struct ClipArgs {
  double limit = 0;
  Tensor x, out;

  static constexpr auto kElements = elements("clip", ElementLayout::rows, input("x", &ClipArgs::x),
                                             output("out", &ClipArgs::out, &ClipArgs::x));
  const char* broken() const { return limit > 0 ? nullptr : "limit above 0"; }
};

// dx = dout where -limit <= x <= limit, else 0. x [T,N] as forward's x; dout, dx as it, of one
// type; dx may be dout.
struct ClipBackwardArgs {
  double limit = 0;
  Tensor x, dout, dx;

  static constexpr auto kElements =
      elements("clip_backward", ElementLayout::rows, input("x", &ClipBackwardArgs::x),
               input("dout", &ClipBackwardArgs::dout),
               output("dx", &ClipBackwardArgs::dx, &ClipBackwardArgs::dout));
  const char* broken() const { return limit > 0 ? nullptr : "limit above 0"; }
};

}  // namespace megatron::kernels
