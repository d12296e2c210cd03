// The reference back-end, the oracle of tests: plain loops on host memory.
#pragma once

#include "kernels/table.h"

namespace megatron::kernels {

const Table& reference_table();

}  // namespace megatron::kernels
