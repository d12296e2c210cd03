// Brings the pieces of tensors to the ranks that write them.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/save_plan.h"
#include "comm/group.h"

namespace megatron::checkpoint {

// Sent and received by a rank at a time, together with all others.
inline constexpr int64_t kRoundBytes = int64_t{64} << 20;
inline constexpr int64_t kLeastOfRank = int64_t{1} << 20;  // of a round, to one other

using Bytes = std::unique_ptr<std::byte[]>;

// Collective; all ranks give the same tensors, with the same writers. Returns, in their order, the
// tensors that this rank writes and does not hold whole, as they lie on disk; null for the others.
// Each distinct piece goes once to the writer of its tensor, from one of the ranks that hold it,
// which share that by bytes. Throws Error, on every rank alike, naming tensors that the ranks
// together do not hold whole or hold unevenly, and elements of them.
//
// Time: every rank lists for the writers the pieces it holds and no more, so it grows with these and
// with the pieces of the tensors it writes. Memory: what is returned, and two buffers of a round.
std::vector<Bytes> reshard(std::span<PlannedTensor* const> tensors, comm::Group& ranks,
                           Stream& stream, int64_t round_bytes = kRoundBytes,
                           int64_t least_of_rank = kLeastOfRank);

}  // namespace megatron::checkpoint
