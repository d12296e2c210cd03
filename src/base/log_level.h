// The lowest level that is logged, for a shared object with a logger of its own.
#pragma once

#include "base/log.h"

namespace megatron::log {

Level lowest_level();

}  // namespace megatron::log
