// Kernels that check shapes and types and request the scratch memory that the kernels of the
// stream's planned device use (Stream::plan), without touching data.
#pragma once

#include "kernels/table.h"

namespace megatron::kernels {

const Table& meta_table();

}  // namespace megatron::kernels
