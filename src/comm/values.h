// Exchange of small host values between ranks.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "comm/group.h"

namespace megatron::comm {

// Collective. Sets each value to its maximum over the ranks.
void largest(Group& ranks, Stream& stream, std::span<double> values, std::string_view call);

// Collective. Sets `bytes`, of any length, to those of rank `root`. Uses a single call if they are
// few.
void broadcast(Group& ranks, Stream& stream, std::string& bytes, int root, std::string_view call);

}  // namespace megatron::comm
