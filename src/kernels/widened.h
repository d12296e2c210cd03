// Computes formats for which a back-end has no arithmetic in a wider format, such as fp16 on the
// CPU. Kernels need no code for it.
#pragma once

#include "kernels/table.h"

namespace megatron::kernels {

// Table of the cpu or meta device whose kernels also accept f16. Each f16 operand gets a contiguous
// f32 copy in the stream's scratch memory; the kernel runs in f32, and its results are rounded to
// f16 once (nearest, ties to even; beyond 65504 to infinity). On meta the same scratch is
// requested. copy, fill and draw convert by themselves, embedding and take_rows only move rows; the
// optimizer's kernels do not support f16 parameters (MasterWeight). A matrix repeated by a stride
// of 0 is copied once. Calls without f16 operands are passed through.
const Table& widened_table(DeviceKind kind);

}  // namespace megatron::kernels
