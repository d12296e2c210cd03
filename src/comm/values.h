// Small values of the host that ranks tell each other.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "comm/group.h"

namespace megatron::comm {

// Collective. Each value becomes the largest of the ranks'.
void largest(Group& ranks, Stream& stream, std::span<double> values, std::string_view call);

// Collective. `bytes`, of any number, become those of rank `root`. One call where they are few.
void broadcast(Group& ranks, Stream& stream, std::string& bytes, int root, std::string_view call);

}  // namespace megatron::comm
