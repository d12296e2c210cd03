#include "device/cuda/out_of_memory.h"

namespace megatron::cuda {

// Without a GPU, there is no free memory to report.
void fail_for_memory(std::string_view failure) { throw OutOfMemory(std::string(failure)); }

}  // namespace megatron::cuda
