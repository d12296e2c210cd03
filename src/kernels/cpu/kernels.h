// Declares the host kernels; kernels/*.h has their contracts.
#pragma once

#include "device/stream.h"
#include "kernels/table.h"

namespace megatron::kernels::cpu {

#define MEGATRON_DECLARE(name, Args) void name(const Args& args, Stream& stream);
MEGATRON_KERNELS(MEGATRON_DECLARE)
#undef MEGATRON_DECLARE

}  // namespace megatron::kernels::cpu
