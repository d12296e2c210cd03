// Depthwise causal convolution of the inputs of a state space (Gu & Dao 2023, section 3.4).
#pragma once

#include "kernels/access.h"

namespace megatron::kernels {

// The largest width K of a convolution.
inline constexpr int64_t kMaxConvolution = 8;

// out[b,t,c] = f(bias[c] + sum over k of weight[c,k] * x[b, t - (K-1) + k, c]), f(s) = s *
// sigmoid(s). Tokens before starts[b,t], the index in the sequence of the first token of t's
// document (undefined: 0), count as 0. x, out [B,T,C], last dim contiguous, other strides free;
// weight [C,K] and bias [C] contiguous, bias may be undefined; starts i32 [B,T]; one floating type.
// Sums in f32 (f64), bias first and k ascending, rounded once. out does not overlap x.
struct CausalConvArgs {
  Tensor x, weight, bias, starts, out;
};

// dx [B,T,C], strides as x. dweight [C,K], dbias [C] f32 (f64): sums over b and t in fixed blocks
// of tokens, the blocks in order; not computed if their out is undefined. dx does not overlap dout.
struct CausalConvBackwardArgs {
  Tensor x, weight, bias, starts, dout, dx;
  Accumulate dweight, dbias;
};

// The same as CausalConvArgs, with the same bits, for sequences that are read in pieces
// (nn/sequence_state.h). x [B,S,C] are the tokens with the indices positions[b,:] i32 [B,S],
// ascending by one, of B texts; -1 from the end of a piece on: padding, whose out is 0. tails
// [slots,K-1,C] of the type of x, contiguous, hold the last K-1 inputs up to some token, the latest
// last. The one before a text's first token here, at index q > 0, is slot block_table[b, (q-1) /
// block_size]; a text begins at q = 0. Of each block of block_size tokens that the piece enters,
// the tail after its last token here is written to slot block_table[b, block]. block_table i32
// [B,blocks].
struct CausalConvContinuedArgs {
  Tensor x, weight, bias, positions, block_table;
  int64_t block_size = 0;
  Tensor tails, out;
};

void check(const CausalConvArgs& args);
void check(const CausalConvBackwardArgs& args);
void check(const CausalConvContinuedArgs& args);

template <class F>
void visit(CausalConvArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("weight", Access::read, a.weight);
  f("bias", Access::read, a.bias);
  f("starts", Access::read, a.starts);
  f("out", Access::write, a.out);
}
template <class F>
void visit(CausalConvBackwardArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("weight", Access::read, a.weight);
  f("bias", Access::read, a.bias);
  f("starts", Access::read, a.starts);
  f("dout", Access::read, a.dout);
  f("dx", Access::write, a.dx);
  f("dweight", written(a.dweight.beta), a.dweight.out);
  f("dbias", written(a.dbias.beta), a.dbias.out);
}
template <class F>
void visit(CausalConvContinuedArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("weight", Access::read, a.weight);
  f("bias", Access::read, a.bias);
  f("positions", Access::read, a.positions);
  f("block_table", Access::read, a.block_table);
  f("tails", Access::update, a.tails);
  f("out", Access::write, a.out);
}

}  // namespace megatron::kernels
