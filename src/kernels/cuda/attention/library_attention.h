// Attention by a library (cuDNN), for the calls of training: library_takes of
// kernels/cuda_scratch/library_attention.h says which. Contracts in kernels/attention.h, but for
// the promise that a row's bits do not depend on the number of queries and keys.
#pragma once

#include "device/stream.h"
#include "kernels/attention.h"

namespace megatron::kernels::cuda {

// True: queued. False: there is no library (cudnn_library.h), or it does not compute such a call on
// this device; nothing was done. The same call gives the same bits in every run on one kind of GPU
// with one version of the library: dq is summed from gradients of all scores that are kept, never
// added to by blocks of threads as they come. The first call of a shape on a stream compiles for
// about a second, and must not be in capture. Throws Error for what goes wrong in the library.
bool library_attention(const AttentionArgs& args, Stream& stream);
bool library_attention_backward(const AttentionBackwardArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
