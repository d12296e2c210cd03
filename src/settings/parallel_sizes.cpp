#include "settings/parallel_sizes.h"

namespace megatron::settings {

void ParallelSizes::size_fields(Fields& f, Of command) {
  const bool engine = command == Of::engine;
  const int64_t most = command == Of::training ? kMaxRanks : engine ? 1024 : 64;
  f.add("tensor-model-parallel-size", &tensor_parallel,
        "tensor-parallel size: ranks that the matrices of every layer are split over")
      .within(1, most);
  if (!engine)
    f.add_switch("sequence-parallel", &sequence_parallel, true,
                 "let tensor-parallel ranks also split the tokens (sequence dimension) outside the "
                 "matrix multiplications");
  f.add("expert-model-parallel-size", &expert_parallel,
        engine ? "expert-parallel size: number of groups that the tensor-parallel ranks form, each "
                 "of which holds whole experts instead of a slice of every expert; must divide "
                 "--tensor-model-parallel-size"
               : "expert-parallel size: data- and tensor-parallel ranks that the experts of every "
                 "layer are split over")
      .within(1, most);
  if (!engine)
    f.add("expert-tensor-parallel-size", &expert_tensor_parallel,
          "ranks that the matrices of every expert are split over; default "
          "--tensor-model-parallel-size")
        .within(1, most);
  f.add("pipeline-model-parallel-size", &pipeline_parallel,
        "pipeline-parallel size: stages, one rank each, that the layers are split over")
      .within(1, most);
}

}  // namespace megatron::settings
