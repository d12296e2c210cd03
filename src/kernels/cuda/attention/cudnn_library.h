// Checks that cuDNN is available for calls that it would compute.
#pragma once

namespace megatron::kernels::cuda {

// Opens cuDNN on the first call. Returns false if cuDNN is missing or unusable, or cannot compile
// its graphs; the first call then logs the reason and the remedy.
bool has_cudnn();

}  // namespace megatron::kernels::cuda
