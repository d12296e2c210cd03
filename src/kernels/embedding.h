// Embedding lookup.
#pragma once

#include "kernels/access.h"

namespace megatron::kernels {

// out[t,:] = table[ids[t],:]. ids i32 [T] in [0, V) (checked when the data is read), table [V,H],
// out [T,H], one type. part: the table is rows `first` to first + V - 1 of a larger one, and ids of
// other rows give zeros, or with `keeps` leave their rows of out as they are.
struct EmbeddingArgs {
  Tensor ids, table, out;
  int64_t first = 0;
  bool part = false, keeps = false;
};

// dtable = sum over t in ascending order of dout[t,:] into row ids[t], + beta * dtable; dtable
// [V,H] f32 (f64 for f64). part: ids of other rows are skipped.
struct EmbeddingBackwardArgs {
  Tensor ids, dout;
  Accumulate dtable;
  int64_t first = 0;
  bool part = false;
};

void check(const EmbeddingArgs& args);
void check(const EmbeddingBackwardArgs& args);

template <class F>
void visit(EmbeddingArgs& a, F&& f) {
  f("ids", Access::read, a.ids);
  f("table", Access::read, a.table);
  f("out", a.keeps ? Access::update : Access::write, a.out);
}
template <class F>
void visit(EmbeddingBackwardArgs& a, F&& f) {
  f("ids", Access::read, a.ids);
  f("dout", Access::read, a.dout);
  f("dtable", written(a.dtable.beta), a.dtable.out);
}

}  // namespace megatron::kernels
