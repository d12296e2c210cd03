// Small numbers of the host that ranks tell each other.
#pragma once

#include <span>
#include <string_view>

#include "comm/group.h"

namespace megatron::comm {

// Collective. Each value becomes the largest of the ranks'.
void largest(Group& ranks, Stream& stream, std::span<double> values, std::string_view call);

}  // namespace megatron::comm
