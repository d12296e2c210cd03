// Buffers that the host's kernels keep between calls.
#pragma once

#include <cstddef>
#include <cstdint>

namespace megatron::kernels::cpu {

// A buffer of the calling thread that is kept and grown between calls. Aligned to 64 bytes; valid
// until the next call with the same slot.
enum class Slot { a, b, c, count };
std::byte* thread_buffer(Slot slot, int64_t bytes);

}  // namespace megatron::kernels::cpu
