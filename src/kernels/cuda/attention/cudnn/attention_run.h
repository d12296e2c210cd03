// Runs an attention call part by part.
#pragma once

#include "base/function_ref.h"
#include "kernels/cuda/attention/cudnn/plan.h"
#include "kernels/cuda_scratch/library_attention.h"

namespace megatron::kernels::cuda::cudnn {

// Queues a plan of attention_graph (or attention_backward_graph) for each part of a call.
void run_attention(const Plan& plan, cudnnHandle_t library, const AttentionArgs& args,
                   const LibraryAttentionPart& part, const LibraryAttentionScratch& scratch);
// zero: queues a fill of a tensor with zeros.
void run_attention(const Plan& plan, cudnnHandle_t library, const AttentionBackwardArgs& args,
                   const LibraryAttentionPart& part, const LibraryAttentionScratch& scratch,
                   FunctionRef<void(const Tensor&)> zero);

}  // namespace megatron::kernels::cuda::cudnn
