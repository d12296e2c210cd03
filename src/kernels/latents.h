// Attention to latents in pages: multi-latent attention in absorbed form (nn/latent_state.h).
#pragma once

#include "kernels/attention.h"

namespace megatron::kernels {

// Keys per range. Each range of a sequence's keys gives a partial result, and these are merged in
// order, so that many threads can share one long text.
inline constexpr int64_t kLatentRange = 1024;

// True if there is one key head whose first elements are also the values.
inline bool are_latents(const AttentionArgs& a) {
  return a.block_table.defined() && a.k.size(2) == 1 && a.v.size(3) <= a.k.size(3) &&
         a.v.same_storage(a.k) && a.v.offset() == a.k.offset() && a.v.stride(0) == a.k.stride(0) &&
         a.v.stride(1) == a.k.stride(1);
}

}  // namespace megatron::kernels
