// The tuned kernels of the host.
#pragma once

#include "kernels/table.h"

namespace megatron::kernels {

const Table& cpu_table();
// Entries that only make a kernel's requests to the scratch arena, in its order; null: it makes
// none. They need no data, and read how many threads there are in Stream::plan.
const Table& cpu_scratch_table();

}  // namespace megatron::kernels
