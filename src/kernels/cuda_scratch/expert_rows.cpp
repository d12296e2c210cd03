#include "kernels/cuda_scratch/expert_rows.h"

#include "base/divide.h"

namespace megatron::kernels::cuda {

SlotBlocks::SlotBlocks(const ExpertRowsArgs& args)
    : slots(args.experts.elements()),
      experts(args.offsets.size(0) - 1),
      segments(args.segment > 0 ? args.experts.size(0) / args.segment : 1),
      of_segment(segments > 0 ? slots / segments : 0),
      blocks_of_segment(ceil_div(of_segment, kHeight)),
      count(segments * blocks_of_segment) {}

ExpertRowsScratch expert_rows_scratch(const ExpertRowsArgs& args, Stream& stream) {
  const SlotBlocks blocks(args);
  const auto words = [&](const Shape& shape, const char* label) {
    return Tensor::empty(stream.scratch(), shape, DType::i32, label);
  };
  ExpertRowsScratch scratch;
  scratch.counts = words({blocks.count, blocks.experts}, "slots by expert");
  scratch.starts = words({blocks.segments + 1, blocks.experts}, "rows by segment");
  if (args.capacity == 0 || args.kept == KeptRows::first) return scratch;
  scratch.offsets = words({blocks.experts + 1}, "experts of all slots");
  scratch.list = words({blocks.slots}, "all slots by expert");
  scratch.choices = words({blocks.slots}, "experts of kept slots");
  return scratch;
}

}  // namespace megatron::kernels::cuda
