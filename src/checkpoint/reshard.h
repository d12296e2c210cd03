// Moves the pieces of tensors to the ranks that write them.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/save_plan.h"
#include "comm/group.h"

namespace megatron::checkpoint {

// Bytes that a rank sends and receives in one collective round.
inline constexpr int64_t kRoundBytes = int64_t{64} << 20;
inline constexpr int64_t kMinOfRank = int64_t{1} << 20;  // per round, to one other rank

using Bytes = std::unique_ptr<std::byte[]>;

// Collective; all ranks pass the same tensors with the same writers. Returns, in their order, the
// tensors that this rank writes and does not hold whole, in disk layout; null for the others. Each
// distinct piece is sent once to the writer of its tensor; the ranks that hold it share this work
// by bytes. Throws Error, on every rank alike, naming tensors, and elements of them, that the ranks
// together do not hold whole or hold unevenly.
//
// Time: every rank lists only the pieces it holds for their writers, so the time grows with these
// and with the pieces of the tensors it writes. Memory: the returned tensors and two buffers of a
// round.
std::vector<Bytes> reshard(std::span<PlannedTensor* const> tensors, comm::Group& ranks,
                           Stream& stream, int64_t round_bytes = kRoundBytes,
                           int64_t least_of_rank = kMinOfRank);

}  // namespace megatron::checkpoint
