// Codes and scales of a quantised matrix, before they are stored.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/quantize.h"

namespace megatron::kernels::reference {

struct BlockCodes {
  std::vector<int64_t> codes;  // of the elements, in row-major order
  std::vector<float> scales;   // as stored, of the blocks
};

// x of bf16 or f32, without row_groups.
BlockCodes block_codes(const QuantizeArgs& args);

}  // namespace megatron::kernels::reference
