#pragma once

#include <functional>

#include "autograd/tape.h"
#include "kernels/head_norm.h"

namespace megatron::ops {

// weight [D], or [N D] for all heads; none: a factor of 1. bias: for a LayerNorm that has one.
struct HeadNorm {
  kernels::NormKind kind = kernels::NormKind::rms;
  Weight weight, bias;
  double weight_offset = 0, eps = 1e-5;
};

// Normalization of all heads of a token together. add_up: turns the sums [T,1] over this rank's
// heads into sums over all heads, on the stream; empty: this rank has all heads.
struct WholeRows {
  int64_t width = 0;  // total width of a token's heads; 0: each head is normalised on its own
  std::function<void(const Tensor& sums, Stream& stream)> add_up;
};

// x [B,S,N,D], heads of a token contiguous, each (or all of a token) normalised by itself
// (kernels/head_norm.h); result [B,S,N,D], dense. Saves x and the statistics.
Var head_norm(Tape& tape, const Var& x, const HeadNorm& norm, const WholeRows& rows = {});

}  // namespace megatron::ops
