// Collectives as recorded ops, each named by what it does forward; backward is its conjugate.
//
//   op                forward                                       backward
//   copy_to           identity                                      all-reduce
//   reduce_from       all-reduce                                    identity
//   scatter_to        split along the last dim                      all-gather
//   gather_from       all-gather along the last dim                 split
//   sequence_scatter  reduce-scatter along tokens (dim 0)           all-gather
//   sequence_gather   all-gather along tokens                       reduce-scatter
//   sequence_split    split along tokens                            all-gather
//
// x is [T, N] in all of them. With one rank each returns x itself.
#pragma once

#include "autograd/tape.h"
#include "parallel/tensor_parallel.h"

namespace megatron::parallel {

Var copy_to(Tape& tape, const Var& x, comm::Group* group);
Var reduce_from(Tape& tape, const Var& x, comm::Group* group);
Var scatter_to(Tape& tape, const Var& x, comm::Group* group);
Var gather_from(Tape& tape, const Var& x, comm::Group* group);
Var sequence_scatter(Tape& tape, const Var& x, comm::Group* group);
Var sequence_gather(Tape& tape, const Var& x, comm::Group* group);
Var sequence_split(Tape& tape, const Var& x, comm::Group* group);

}  // namespace megatron::parallel
