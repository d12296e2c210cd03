// The reference kernels; kernels/*.h has their contracts. Each loads its inputs into dense rows of
// the compute type (double for f64, else float), computes with plain loops, and stores with one
// rounding, so outputs may alias inputs.
#pragma once

#include "device/stream.h"
#include "kernels/table.h"

namespace megatron::kernels::reference {

#define MEGATRON_DECLARE(name, Args) void name(const Args& args, Stream& stream);
MEGATRON_KERNELS(MEGATRON_DECLARE)
#undef MEGATRON_DECLARE

}  // namespace megatron::kernels::reference
