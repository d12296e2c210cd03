// Lowest level that is logged, for a shared object with its own logger.
#pragma once

#include "base/log.h"

namespace megatron::log {

Level lowest_level();

}  // namespace megatron::log
