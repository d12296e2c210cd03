#include "kernels/cuda/attention/library_attention.h"

#include "kernels/cuda/attention/cudnn_library.h"
#include "kernels/cuda_scratch/library_attention.h"

namespace megatron::kernels::cuda {

// A plugin built for the CPU has no cuDNN, but tests also simulate one that is missing.
bool library_attention(const AttentionArgs& args, Stream&) {
  if (library_takes(args)) has_cudnn();
  return false;
}
bool library_attention_backward(const AttentionBackwardArgs& args, Stream& stream) {
  if (library_takes(args, stream.nondeterministic())) has_cudnn();
  return false;
}

}  // namespace megatron::kernels::cuda
