#include "ops/clip.h"

#include <array>

#include "base/error.h"

namespace megatron::ops {
namespace {

struct ClipAttributes {
  double limit;
};

// View of the tensor, or of [B,S,N,D], as [T,N].
Tensor token_rows(const Tensor& x) {
  if (x.rank() == 2) return x;
  MG_ASSERT(x.rank() == 4 && x.stride(3) == 1 && x.stride(2) == x.size(3) &&
            x.stride(0) == x.size(1) * x.stride(1));
  const std::array<int64_t, 2> strides = {x.stride(1), 1};
  return x.as_strided({x.size(0) * x.size(1), x.size(2) * x.size(3)}, strides);
}

void clip_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const Tensor &x = backward.saved(0), &dout = backward.gradient(0);
  Tensor dx = backward.empty(dout.shape(), x.dtype(), "clip.dx");
  const double limit = backward.attributes<ClipAttributes>().limit;
  backward.kernels().clip_backward(
      {.limit = limit, .x = x, .dout = token_rows(dout), .dx = token_rows(dx)}, backward.stream());
  backward.set(0, dx);
}

}  // namespace

Var clip(Tape& tape, const Var& x, double limit) {
  const Tensor rows = token_rows(x.value);
  Tensor out = tape.empty(x.value.shape(), x.value.dtype(), "clip");
  tape.kernels().clip({.limit = limit, .x = rows, .out = token_rows(out)}, tape.stream());
  Node node{.name = "clip", .inputs = {x.id}, .saved = {rows}, .dgrad = clip_dgrad};
  node.attributes = ClipAttributes{limit};
  return tape.record_one(std::move(node), out);
}

}  // namespace megatron::ops
