#include "kernels/cuda/attention/cudnn_library.h"

#include "base/log.h"
#include "device/cuda/libraries.h"

namespace megatron::kernels::cuda {
namespace {

using megatron::cuda::NvidiaLibrary;
using megatron::cuda::opened;

bool find_cudnn() {
  for (const NvidiaLibrary library : {NvidiaLibrary::cudnn, NvidiaLibrary::nvrtc}) {
    const CudaLibrary& found = opened(library);
    if (found.why_not.empty()) continue;
    log::warning(
        "{} cannot be used: {}. Attention in bf16 and fp16 runs on this program's own kernels, "
        "which are slower",
        found.name, found.why_not);
    return false;
  }
  const CudaLibrary& cudnn = opened(NvidiaLibrary::cudnn);
  if (!cudnn.path.empty())
    log::info("attention in bf16 and fp16: cuDNN {} ({})", cudnn.version, cudnn.path);
  return true;
}

}  // namespace

bool has_cudnn() {
  static const bool found = find_cudnn();
  return found;
}

}  // namespace megatron::kernels::cuda
