// The driver's functions, resolved at run time: libcuda is not linked.
#pragma once

namespace megatron::cuda {

// A driver function available since that version of CUDA (12000 is 12.0). Throws Error if the
// driver lacks it.
void* driver_entry(const char* name, unsigned since);

template <class Signature>
Signature* driver_function(const char* name, unsigned since) {
  return reinterpret_cast<Signature*>(driver_entry(name, since));
}

}  // namespace megatron::cuda
