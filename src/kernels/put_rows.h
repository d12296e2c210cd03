// Rows that go to given places of a matrix.
#pragma once

#include "kernels/access.h"

namespace megatron::kernels {

// out[rows[t], :] = x[t, :] where rows[t] >= 0. x [T,W], last dim contiguous; rows i32 [T], each at most once and
// below R (a row that is not there is left out); out [R,W] contiguous, of x's type. Other rows of out stay.
struct PutRowsArgs {
  Tensor x, rows, out;
};

void check(const PutRowsArgs& args);

template <class F>
void visit(PutRowsArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("rows", Access::read, a.rows);
  f("out", Access::update, a.out);
}

}  // namespace megatron::kernels
