// The optimized kernels of the host.
#pragma once

#include "kernels/table.h"

namespace megatron::kernels {

const Table& cpu_table();
// Entries that only make a kernel's scratch requests, in the kernel's order; null if it makes none.
// They need no data, and take the number of threads from Stream::plan.
const Table& cpu_scratch_table();

}  // namespace megatron::kernels
