// Which quantised products a GPU computes on tensor cores of 8 or 4 bits.
#pragma once

#include "autograd/low_precision.h"

namespace megatron::nn {

// True if operands of products by the recipe are stored as codes in a run on CUDA: all of this
// machine's GPUs have tensor cores for them (tensorwise and delayed from compute capability 8.9 on,
// blockwise 9.0 alone, mxfp8 and nvfp4 from 10.0 on) and its cuBLASLt knows their scales (of
// blocks: 12.9). On a machine without a GPU, those of an H200.
bool multiplies_codes(LowPrecisionRecipe recipe);

}  // namespace megatron::nn
