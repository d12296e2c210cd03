// Exchange of lists of numbers whose lengths only the senders know.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "comm/group.h"

namespace megatron::checkpoint {

using Numbers = std::vector<int64_t>;

// Collective. Sends lists[r] to rank r, one list per rank; returns what each rank sent here.
std::vector<Numbers> exchange(comm::Group& ranks, Stream& stream, std::span<const Numbers> lists,
                              std::string_view call);
// Collective. Returns the numbers of all ranks in rank order; every rank passes equally many.
Numbers gather(comm::Group& ranks, Stream& stream, std::span<const int64_t> mine,
               std::string_view call);

}  // namespace megatron::checkpoint
