#include "training/rank_sums.h"

namespace megatron::training {

void sum_over_tokens(const Tensor& sums, const parallel::Ranks& ranks, Stream& stream,
                     std::string_view call) {
  ranks.replicas().all_reduce(sums, comm::Reduce::sum, stream, call).wait(stream);
  if (ranks.stages() == nullptr) return;
  const parallel::PipelineShape& shape = ranks.pipeline();
  ranks.stages()
      ->broadcast(sums, shape.stage_of(shape.virtual_stages() - 1), stream, call)
      .wait(stream);
}

}  // namespace megatron::training
