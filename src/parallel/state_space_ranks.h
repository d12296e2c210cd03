// Ranks that share a state space (ops/state_space.h): tensor-parallel ranks its groups,
// context-parallel ranks its sequences. Of the latter, --cp-comm-type (ContextExchange) says what
// they exchange:
//   a2a         tokens for heads: every rank scans whole sequences with a share of the heads
//   p2p         states: every rank scans its runs of tokens with all heads, from the state before
//               each run, which is passed along the sequence from rank to rank, and from the inputs
//               before it that the convolution reads
//   all_gather  the same, but every rank gets what each run adds to the state, and adds it up
//   a2a_p2p     a2a in groups of neighbouring ranks, p2p between ranks with the same heads
#pragma once

#include <memory>

#include "ops/state_space.h"
#include "parallel/context_attention.h"
#include "parallel/tensor_parallel.h"

namespace megatron::parallel {

// shape: of this rank; its `sharing` tensor-parallel ranks have heads of one group. conv_width: K.
// heads must be a multiple of context.head_ranks(), and groups a multiple or a divisor of it.
// Returns null if nothing is shared. Throws Error if runs of tokens are shorter than what the
// convolution reads before them. Borrows the groups.
std::shared_ptr<const ops::StateSpaceExchange> state_space_exchange(
    const ops::StateSpaceShape& shape, int64_t conv_width, const ContextTokens& tokens,
    const ContextParallel& context, const TensorParallel& tensor);

}  // namespace megatron::parallel
