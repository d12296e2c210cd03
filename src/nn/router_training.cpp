#include "nn/router_training.h"

#include "base/error.h"

namespace megatron::nn {

void RouterTraining::check_divided(int64_t length, int64_t own, int tensor_ranks) const {
  MG_CHECK(
      own % length == 0 || length % own == 0 ||
          (sequence_aux_loss == 0 && global_aux_loss == 0 && z_loss == 0),
      "--moe-router-load-balancing-type seq_aux_loss or global_aux_loss and --moe-z-loss-coeff "
      "with --sequence-parallel: {} tensor-parallel ranks have {} tokens each, with parts of "
      "several sequences of {} tokens; make --micro-batch-size a multiple or a divisor of "
      "--tensor-model-parallel-size",
      tensor_ranks, own, length);
}

}  // namespace megatron::nn
