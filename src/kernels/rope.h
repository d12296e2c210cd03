// Rotary position embedding (Su et al. 2021).
#pragma once

#include "kernels/access.h"

namespace megatron::kernels {

// out[t,n,:] = x[t,n,:] rotated by the angles of positions[t]; x, out [T,N,D], last dim contiguous,
// other strides free; out may be x. With half = cos.size(1) pairs: pair i is (i, i + half), or (2i,
// 2i + 1) if interleaved; dims from 2 half on are copied. cos, sin [P, half] f32 (f64 for f64), row
// = position; positions [T] i32 in [0, P). inverse: rotates by the negative angles, which is the
// gradient.
struct RopeArgs {
  Tensor x, out;
  Tensor cos, sin, positions;
  bool interleaved = false, inverse = false;
};

void check(const RopeArgs& args);

template <class F>
void visit(RopeArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("cos", Access::read, a.cos);
  f("sin", Access::read, a.sin);
  f("positions", Access::read, a.positions);
  f("out", Access::write, a.out);
}

}  // namespace megatron::kernels
