// Scratch memory of CUDA's expert_rows. It is requested by the kernel, and by meta when a run is
// planned for CUDA.
#pragma once

#include "device/stream.h"
#include "kernels/expert_rows.h"

namespace megatron::kernels::cuda {

// Slots are counted in blocks of 512, which end with their segment.
struct SlotBlocks {
  explicit SlotBlocks(const ExpertRowsArgs& args);
  static constexpr int kHeight = 512;
  int64_t slots, experts, segments;
  int64_t of_segment;         // slots per segment
  int64_t blocks_of_segment;  // blocks per segment
  int64_t count;              // blocks in total
};

// All i32.
struct ExpertRowsScratch {
  Tensor counts;  // [blocks, G]
  Tensor starts;  // [S + 1, G]
  // Only if the largest weights are kept, else undefined.
  Tensor offsets;        // [G + 1]
  Tensor list, choices;  // [slots]
};
ExpertRowsScratch expert_rows_scratch(const ExpertRowsArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
