// Attention by a library (cuDNN) for training calls: library_takes() in
// kernels/cuda_scratch/library_attention.h decides which. kernels/attention.h has the contract,
// except that a row's bits may depend on the number of queries and keys.
#pragma once

#include "device/stream.h"
#include "kernels/attention.h"

namespace megatron::kernels::cuda {

// Returns true if the call was queued, false if there is no library (cudnn_library.h) or it does
// not support the call on this device; nothing was done then. The same call gives the same bits in
// every run on one kind of GPU with one version of the library: dq is summed from stored gradients
// of all scores, not accumulated in the order in which thread blocks arrive. The first call of a
// shape on a stream compiles for about a second and must not be captured. Throws Error if the
// library fails.
bool library_attention(const AttentionArgs& args, Stream& stream);
bool library_attention_backward(const AttentionBackwardArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
