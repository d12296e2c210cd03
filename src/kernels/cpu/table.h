// The tuned kernels of the host.
#pragma once

#include "kernels/table.h"

namespace megatron::kernels {

const Table& cpu_table();

}  // namespace megatron::kernels
