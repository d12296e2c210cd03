// The host's attention; contracts in kernels/attention.h. Types f32 and bf16; f64 is the reference
// device's.
#pragma once

#include "device/stream.h"
#include "kernels/attention.h"

namespace megatron::kernels::cpu {

void attention(const AttentionArgs& args, Stream& stream);
void attention_backward(const AttentionBackwardArgs& args, Stream& stream);

// Memory that a call takes of the scratch arena.
struct AttentionScratch {
  std::shared_ptr<Storage> positions, keys,
      tiles;                       // keys: of forward; null where nothing is computed
  std::shared_ptr<Storage> sinks;  // of backward with dsinks: f64 [B,N]
  int64_t tile_bytes = 0;          // of one thread
};
AttentionScratch attention_scratch(const AttentionArgs& args, Stream& stream);
AttentionScratch attention_backward_scratch(const AttentionBackwardArgs& args, Stream& stream);

}  // namespace megatron::kernels::cpu
