#include "device/cuda/out_of_memory.h"

namespace megatron::cuda {

// Where there is no GPU to ask for what it has left.
void fail_for_memory(std::string_view failure) { throw OutOfMemory(std::string(failure)); }

}  // namespace megatron::cuda
