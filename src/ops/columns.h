// Divides the columns of a matrix between two, joins them, and scales some of them.
#pragma once

#include <array>
#include <vector>

#include "autograd/tape.h"

namespace megatron::ops {

// The first `first` columns of x [T,C], and the others, as tensors of their own.
std::array<Var, 2> split_columns(Tape& tape, const Var& x, int64_t first);

// [a | b]: the columns of a [T,A], then those of b [T,B], as one tensor [T,A+B]. [T] is one column.
Var join_columns(Tape& tape, const Var& a, const Var& b);

// Multiplies the columns of x [T,C], which are those of consecutive blocks, by a factor for each
// block. Takes ownership of x, which is overwritten: nothing else may read it, before or after.
struct ScaledColumns {
  int64_t columns = 0;
  double factor = 1;
};
Var scale_columns(Tape& tape, Var&& x, std::vector<ScaledColumns> blocks);

}  // namespace megatron::ops
