// Kernels that check shapes and types and touch no data.
#pragma once

#include "kernels/table.h"

namespace megatron::kernels {

const Table& meta_table();

}  // namespace megatron::kernels
