// Lists of numbers whose lengths only the senders know.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "comm/group.h"

namespace megatron::checkpoint {

using Numbers = std::vector<int64_t>;

// Collective. lists[r] goes to rank r, one list a rank; returns what each rank sent here.
std::vector<Numbers> exchange(comm::Group& ranks, Stream& stream, std::span<const Numbers> lists,
                              std::string_view call);
// Collective. What every rank gives, as many numbers each: rank after rank.
Numbers gather(comm::Group& ranks, Stream& stream, std::span<const int64_t> mine,
               std::string_view call);

}  // namespace megatron::checkpoint
