#include "kernels/cuda_scratch/expert_balance.h"

namespace megatron::kernels::cuda {

Tensor sinkhorn_scratch(const SinkhornArgs& args, Stream& stream) {
  const int64_t tokens = args.logits.size(0), experts = args.logits.size(1);
  return Tensor::empty(stream.scratch(), {(tokens + 1) * experts + tokens}, DType::f64, "sinkhorn");
}

Tensor expert_thresholds_scratch(const ExpertThresholdsArgs& args, Stream& stream) {
  return Tensor::empty(stream.scratch(), {args.logits.size(1), args.logits.size(0)},
                       args.logits.dtype(), "scores above a token's threshold");
}

}  // namespace megatron::kernels::cuda
