#include "ops/rope.h"

#include <array>

#include "base/error.h"

namespace megatron::ops {
namespace {

struct RotateAttributes {
  bool interleaved;
};

// [B,S,N,D] viewed as [B*S,N,D], with any stride between tokens.
Tensor by_token(const Tensor& x) {
  MG_ASSERT(x.size(0) == 1 || x.stride(0) == x.size(1) * x.stride(1));
  const std::array<int64_t, 3> strides = {x.stride(1), x.stride(2), x.stride(3)};
  return x.as_strided({x.size(0) * x.size(1), x.size(2), x.size(3)}, strides);
}

void rotate_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const Tensor& dout = backward.gradient(0);
  Tensor dx = backward.empty(dout.shape(), dout.dtype(), "rotate.dx");
  backward.kernels().rope({.x = by_token(dout),
                           .out = by_token(dx),
                           .cos = backward.saved(0),
                           .sin = backward.saved(1),
                           .positions = backward.saved(2),
                           .interleaved = backward.attributes<RotateAttributes>().interleaved,
                           .inverse = true},
                          backward.stream());
  backward.set(0, dx);
}

}  // namespace

Var rotate(Tape& tape, Var&& x, const Rotary& rotary) {
  const Tensor rows = by_token(x.value);
  tape.kernels().rope({.x = rows,
                       .out = rows,
                       .cos = rotary.cos,
                       .sin = rotary.sin,
                       .positions = rotary.positions,
                       .interleaved = rotary.interleaved},
                      tape.stream());
  Node node{.name = "rotate",
            .inputs = {x.id},
            .saved = {rotary.cos, rotary.sin, rotary.positions},
            .dgrad = rotate_dgrad};
  node.attributes = RotateAttributes{rotary.interleaved};
  return tape.record_one(std::move(node), x.value);
}

}  // namespace megatron::ops
