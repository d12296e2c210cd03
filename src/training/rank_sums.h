#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "parallel/ranks.h"

namespace megatron::training {

// Sums the last pipeline stage's `sums` in place over the ranks with different tokens; all ranks
// get the result. Collective.
void sum_over_tokens(const Tensor& sums, const parallel::Ranks& ranks, Stream& stream,
                     std::string_view call);

// The same for values on the host, of which each is zero but on the last stage's ranks that hold
// its tokens. Reduces a fixed number of elements at a time, so that memory does not depend on their
// number.
std::vector<double> sum_over_tokens(std::span<const double> mine, const parallel::Ranks& ranks,
                                    Runtime& runtime, std::string_view call);

}  // namespace megatron::training
