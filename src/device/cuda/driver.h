// The driver's functions, found when the program runs: libcuda is not linked.
#pragma once

namespace megatron::cuda {

// A function that the driver has since that version of CUDA (12000 is 12.0). Throws Error when the
// driver lacks it.
void* driver_entry(const char* name, unsigned since);

template <class Signature>
Signature* driver_function(const char* name, unsigned since) {
  return reinterpret_cast<Signature*>(driver_entry(name, since));
}

}  // namespace megatron::cuda
