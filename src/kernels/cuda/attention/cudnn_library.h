// Checks that cuDNN is available for calls that it would compute.
#pragma once

namespace megatron::kernels::cuda {

// Opens it on the first call. False: there is none that can be used, or none that can compile its
// graphs, which the first call logs with the reason and what to do.
bool has_cudnn();

}  // namespace megatron::kernels::cuda
