#pragma once

#include <string_view>

#include "parallel/ranks.h"

namespace megatron::training {

// In place, collective: the sum, over the ranks that see different samples, of what the last
// pipeline stage has in `sums`; all ranks get it.
void sum_over_samples(const Tensor& sums, const parallel::Ranks& ranks, Stream& stream,
                      std::string_view call);

}  // namespace megatron::training
