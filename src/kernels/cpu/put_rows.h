// The host's put_rows; contract in kernels/put_rows.h.
#pragma once

#include "device/stream.h"
#include "kernels/put_rows.h"

namespace megatron::kernels::cpu {

void put_rows(const PutRowsArgs& args, Stream& stream);

}  // namespace megatron::kernels::cpu
