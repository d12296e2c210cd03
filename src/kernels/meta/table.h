// Kernels that check shapes and types, ask for the scratch memory that those of the stream's
// planned device take (Stream::plan), and touch no data.
#pragma once

#include "kernels/table.h"

namespace megatron::kernels {

const Table& meta_table();

}  // namespace megatron::kernels
