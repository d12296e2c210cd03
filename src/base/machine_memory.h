#pragma once

#include "base/machine_limits.h"

namespace megatron {

inline int64_t machine_memory() { return available_memory(); }

}  // namespace megatron
