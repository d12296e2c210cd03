// Calls that CUDA delegates to a library's attention (cuDNN), their parts, and the scratch memory
// for them, which is requested by the kernels, and by meta when a run is planned for CUDA.
#pragma once

#include "device/stream.h"
#include "kernels/attention.h"

namespace megatron::kernels::cuda {

// True for training attention in bf16 and f16: causal with as many keys as queries, or full; no
// positions, window_start, window_end, dropout, soft cap, sinks or bias, and no window or chunk
// shorter than the queries or the keys; gradients of q's type, not accumulated; at least 128
// queries and keys, in multiples of 64; widths of keys and values up to 256, multiples of 8; all
// operands aligned to 16 bytes. The library compiles each new shape for about a second, so
// generation uses this program's kernels.
bool library_takes(const AttentionArgs& args);
// Also requires that one key head of a sample needs at most 4 GiB. any_order: the library may
// accumulate dq in f32 in the order in which thread blocks arrive, so that its bits differ between
// runs.
bool library_takes(const AttentionBackwardArgs& args, bool any_order = false);

// A call is split into parts of this many samples and key heads, which divide those of the call. A
// part has all heads unless it is one sample. Backward stores two bytes per score or, if sums may
// be added in any order, four per value of dq. Parts are as large as `most` bytes allow, with at
// least one key head. Results do not depend on the parts.
struct LibraryAttentionPart {
  int64_t samples = 1, kv_heads = 1;
  int64_t workspace = 0;  // most bytes that a plan may use
  // Bytes of the gradients of all scores: a backward plan that requests less has no room for them,
  // and accumulates dq in the order in which thread blocks arrive. 0 in any order.
  int64_t ordered = 0;
  int64_t dq_sums = 0;  // in any order: values of dq in f32, besides the workspace
};
LibraryAttentionPart library_part(const AttentionArgs& args);
LibraryAttentionPart library_part(const AttentionBackwardArgs& args, int64_t most,
                                  bool any_order = false);

// Scratch of backward's part, as far as the stream allows.
struct LibraryAttentionScratch {
  Tensor workspace;  // u8, for one part
  Tensor delta;      // f32 [samples, heads, queries] of one part; undefined in forward
  Tensor dq_sums;    // f32, for one part in any order; else undefined
};
LibraryAttentionScratch library_attention_scratch(const AttentionArgs& args, Stream& stream);
LibraryAttentionScratch library_attention_scratch(const AttentionBackwardArgs& args,
                                                  Stream& stream);

// Requests and releases the scratch of a call that a library takes. Every attention call requests
// the library's scratch and this program's own, one after the other, whichever computes it, so that
// a plan need not know which libraries will be available.
void ask_library_scratch(const AttentionArgs& args, Stream& stream);
void ask_library_scratch(const AttentionBackwardArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
