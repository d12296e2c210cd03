#pragma once

#include <string_view>

#include "parallel/ranks.h"

namespace megatron::training {

// Sums the last pipeline stage's `sums` in place over the ranks with different tokens; all ranks
// get the result. Collective.
void sum_over_tokens(const Tensor& sums, const parallel::Ranks& ranks, Stream& stream,
                     std::string_view call);

}  // namespace megatron::training
