// Writes rows of heads to given positions of pages (AttentionArgs::block_table).
#pragma once

#include "kernels/access.h"

namespace megatron::kernels {

// out[rows[t] / P, rows[t] % P, :, :] = x[t, :, :] if rows[t] >= 0. x [T,K,D], out [pages,P,K,D] of
// one type, last dim contiguous, other strides free; rows i32 [T], distinct and below pages * P
// (negative ones are skipped). Other rows of out are unchanged.
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
