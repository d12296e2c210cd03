// How much memory this machine has.
#pragma once

#include <cstdint>

namespace megatron {

// Bytes; 0 where the system does not tell.
int64_t machine_memory();

}  // namespace megatron
