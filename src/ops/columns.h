// Divides the columns of a matrix between two, and joins them.
#pragma once

#include <array>

#include "autograd/tape.h"

namespace megatron::ops {

// The first `first` columns of x [T,C], and the others, as tensors of their own.
std::array<Var, 2> split_columns(Tape& tape, const Var& x, int64_t first);

// [a | b]: the columns of a [T,A], then those of b [T,B], as one tensor [T,A+B]. [T] is one column.
Var join_columns(Tape& tape, const Var& a, const Var& b);

}  // namespace megatron::ops
