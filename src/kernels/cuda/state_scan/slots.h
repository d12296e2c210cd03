// Slots of a call that continues texts, after its outputs.
#pragma once

#include "kernels/cuda/state_scan/call.h"

namespace megatron::kernels::cuda {

// Writes states, and the tokens of incomplete chunks, to the slots; out of padding becomes 0.
template <class T>
void store_states(const ScanCall<T>& call, int64_t sequences, Stream& stream);
template <class T>
void store_tokens(const ScanCall<T>& call, int64_t sequences, Stream& stream);

}  // namespace megatron::kernels::cuda
