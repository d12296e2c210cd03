// Kernels that check shapes and types, request the scratch memory that those of the stream's
// planned device take (Stream::plan), and do not touch data.
#pragma once

#include "kernels/table.h"

namespace megatron::kernels {

const Table& meta_table();

}  // namespace megatron::kernels
