// Exchange of texts between ranks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "comm/group.h"

namespace megatron::comm {

// Collective. Returns the texts of all ranks, in rank order, on all ranks.
std::vector<std::string> gather_texts(Group& ranks, Stream& stream, const std::string& text,
                                      std::string_view call);

}  // namespace megatron::comm
