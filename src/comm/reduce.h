// Arithmetic of the host's reductions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/thread_pool.h"
#include "comm/group.h"

namespace megatron::comm {

std::string_view name(Reduce op);

// For each element i of [begin, end): combines sources[0][i], sources[1][i], ... in this order, in
// f32 (f64 for f64, 64-bit integers for integers, which wrap), rounds once, and stores the result
// to every destination. sum or max; the maximum with a NaN is NaN. A destination may be one of the
// sources. Splitting the range into pieces gives the same bits.
void reduce(std::span<const void* const> sources, std::span<void* const> destinations, DType type,
            Reduce op, int64_t begin, int64_t end);
// The same with the threads of the pool.
void reduce(std::span<const void* const> sources, std::span<void* const> destinations, DType type,
            Reduce op, int64_t begin, int64_t end, ThreadPool& pool);

}  // namespace megatron::comm
