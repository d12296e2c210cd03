#include "nn/router_training.h"

#include "base/error.h"

namespace megatron::nn {

void RouterTraining::check_divided(int64_t length, int64_t own, int tensor_ranks,
                                   int expert_ranks) const {
  const bool whole = own % length == 0;
  MG_CHECK(
      whole || length % own == 0 || (sequence_aux_loss == 0 && global_aux_loss == 0 && z_loss == 0),
      "--moe-router-load-balancing-type seq_aux_loss or global_aux_loss and --moe-z-loss-coeff "
      "with --sequence-parallel: {} tensor-parallel ranks have {} tokens each, with parts of "
      "several sequences of {} tokens; make --micro-batch-size a multiple or a divisor of "
      "--tensor-model-parallel-size",
      tensor_ranks, own, length);
  MG_CHECK(
      whole || capacity_factor <= 0 || !capacity_of_sequence || expert_ranks % tensor_ranks == 0,
      "--moe-capacity-scope sequence: {} tensor-parallel ranks divide the {} tokens of a sequence, "
      "so no rank has all of them; use --moe-capacity-scope microbatch, or an "
      "--expert-tensor-parallel-size of {}",
      tensor_ranks, length, tensor_ranks);
}

}  // namespace megatron::nn
