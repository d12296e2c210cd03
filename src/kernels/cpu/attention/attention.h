// Attention on the host; kernels/attention.h has the contract. Supports f32 and bf16; the reference
// device computes f64.
#pragma once

#include "device/stream.h"
#include "kernels/attention.h"

namespace megatron::kernels::cpu {

void attention(const AttentionArgs& args, Stream& stream);
void attention_backward(const AttentionBackwardArgs& args, Stream& stream);

// Memory that a call requests from the scratch arena.
struct AttentionScratch {
  std::shared_ptr<Storage> positions, keys,
      tiles;                                 // keys: forward only; null if nothing is computed
  std::shared_ptr<Storage> ranges;           // forward of long latents only: totals of ranges
  std::shared_ptr<Storage> sinks;            // backward with dsinks only: f64 [B,N]
  std::shared_ptr<Storage> bias, bias_sums;  // with a bias; sums: backward with dbias only
  int64_t tile_bytes = 0;                    // per thread
};
AttentionScratch attention_scratch(const AttentionArgs& args, Stream& stream);
AttentionScratch attention_backward_scratch(const AttentionBackwardArgs& args, Stream& stream);

}  // namespace megatron::kernels::cpu
