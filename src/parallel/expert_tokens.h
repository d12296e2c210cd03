// Tokens among the ranks that hold the experts of a layer between them, some experts each (expert parallelism; Lepikhin
// et al. 2021), and slices of each expert's matrices: every rank gets the tokens of all, and the sum of what all make of
// them goes back. Nothing depends on how many tokens go to which expert, so that no size is read from a device.
#pragma once

#include "autograd/tape.h"
#include "comm/group.h"

namespace megatron::parallel {

struct ExpertRanks {
  comm::Group* group =
      nullptr;  // borrowed; null: one rank, for which every call here is the identity
  // Whether each rank has tokens of its own; else all have the same ones (tensor-parallel ranks that do not divide them).
  bool own_tokens = true;

  bool gathers() const { return group != nullptr && own_tokens; }
};

// [n T, N] of each rank's x [T,N], in rank order, T alike on all; the same tokens: x. Backward: the sum over the ranks,
// of which each gets its rows.
Var to_expert_ranks(Tape& tape, const Var& x, const ExpertRanks& ranks, std::string_view name);
// The same of integers, through which no gradient flows.
Tensor to_expert_ranks(Tape& tape, const Tensor& x, const ExpertRanks& ranks,
                       std::string_view name);
// The sum over the ranks of partial [n T, N], of which each gets its rows [T,N]; the same tokens: all of the sum, in
// place of `partial`. Backward: the gradients of all ranks; the same tokens: the gradient itself.
Var from_expert_ranks(Tape& tape, const Var& partial, const ExpertRanks& ranks,
                      std::string_view name);

}  // namespace megatron::parallel
