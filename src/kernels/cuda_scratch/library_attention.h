// What CUDA hands to a library's attention (cuDNN), in which parts, and the scratch memory of that:
// asked for by the kernels, and by meta when a run is planned for CUDA.
#pragma once

#include "device/stream.h"
#include "kernels/attention.h"

namespace megatron::kernels::cuda {

// Training's attention in bf16 and f16: causal with as many keys as queries, or full; no positions,
// begins, dropout, soft cap or sinks, and no window or chunk shorter than the keys; gradients of the
// type of q, not added to; 128 queries and keys or more, in multiples of 64; heads of up to 256, a
// multiple of 8; all that is read or written aligned to 16 bytes. Each shape costs the library a
// second once, so that those of generation are left to our own kernels.
bool library_takes(const AttentionArgs& args);
// And one key head of a sample needs no more than 4 GiB. any_order: the library may add to dq as
// blocks of threads come, in f32, so that its bits differ from run to run.
bool library_takes(const AttentionBackwardArgs& args, bool any_order = false);

// A call is made in parts of so many samples and key heads, which divide those of the call: all
// heads unless it is one sample. Backward keeps two bytes a score or, in any order, four a value of
// dq: parts are as large as `most` bytes allow, at least one key head. Results do not depend on it.
struct LibraryAttentionPart {
  int64_t samples = 1, kv_heads = 1;
  int64_t workspace = 0;  // bytes, the most that a plan may ask for
  // The gradients of all scores: a backward plan that asks for less has no room for them, and adds
  // to dq as blocks of threads come. 0 in any order.
  int64_t ordered = 0;
  int64_t dq_sums = 0;  // in any order: values of dq in f32, besides the workspace
};
LibraryAttentionPart library_part(const AttentionArgs& args);
LibraryAttentionPart library_part(const AttentionBackwardArgs& args, int64_t most,
                                  bool any_order = false);

// Of backward's part: that which the stream allows.
struct LibraryAttentionScratch {
  Tensor workspace;  // u8, of one part
  Tensor delta;      // f32 [samples, heads, queries] of one part; undefined in forward
  Tensor dq_sums;    // f32, of one part in any order; else undefined
};
LibraryAttentionScratch library_attention_scratch(const AttentionArgs& args, Stream& stream);
LibraryAttentionScratch library_attention_scratch(const AttentionBackwardArgs& args,
                                                  Stream& stream);

// Asks for that of a call that a library takes, and lets it go. Every call of attention asks for the
// library's scratch and for our own, one after the other, whoever computes it: a plan need not know
// which libraries will be there.
void ask_library_scratch(const AttentionArgs& args, Stream& stream);
void ask_library_scratch(const AttentionBackwardArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
