// Samples and positions of the tokens of permuted rows, which key their random numbers.
#pragma once

#include "kernels/access.h"
#include "kernels/row_tokens.h"

namespace megatron::kernels {

// Writes the sample and the position of the token of each row r: token index[r] / share, counted
// from the first row of `tokens`; both are 0 if index[r] is negative. Without an index, token r.
// The results make RowTokens in which each row is a sequence of length 1. tokens: with a length;
// index i32 [R] or undefined; sample_ids i64 [R], positions i32 [R].
struct TokensOfRowsArgs {
  RowTokens tokens;
  Tensor index;
  int64_t share = 1;
  Tensor sample_ids, positions;
};

void check(const TokensOfRowsArgs& args);

template <class F>
void visit(TokensOfRowsArgs& a, F&& f) {
  f("tokens.sample_ids", Access::read, a.tokens.sample_ids);
  f("tokens.positions", Access::read, a.tokens.positions);
  f("index", Access::read, a.index);
  f("sample_ids", Access::write, a.sample_ids);
  f("positions", Access::write, a.positions);
}

}  // namespace megatron::kernels
