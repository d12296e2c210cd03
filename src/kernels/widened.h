// Formats that a back-end has no arithmetic for, by a wider one: fp16 on the CPU. No kernel needs
// code of its own.
#pragma once

#include "kernels/table.h"

namespace megatron::kernels {

// The table of the cpu or meta device whose kernels take f16, too: for each f16 operand there is a
// contiguous f32 one in the stream's scratch; those that are read are copied into it, the kernel
// runs in f32, and what it wrote is rounded to f16 once (nearest, ties to even; beyond 65504 to
// infinity). On meta the same scratch is asked for. copy, fill and draw convert by themselves, embedding and
// take_rows only move rows; the optimizer's kernels take no f16 parameter (MasterWeight). A matrix that a
// stride of 0 repeats stays one matrix. Calls without f16 operands go straight through.
const Table& widened_table(DeviceKind kind);

}  // namespace megatron::kernels
