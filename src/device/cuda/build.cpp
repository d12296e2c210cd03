#include "device/cuda/build.h"

namespace megatron::cuda {

std::string_view built_libraries() { return MEGATRON_CUDA_LIBRARIES; }
std::string_view built_code() { return MEGATRON_CUDA_CODE; }

}  // namespace megatron::cuda
