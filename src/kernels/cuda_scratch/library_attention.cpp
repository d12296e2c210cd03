#include "kernels/cuda_scratch/library_attention.h"

#include <algorithm>
#include <initializer_list>

#include "base/divide.h"

namespace megatron::kernels::cuda {
namespace {

constexpr int64_t kSlack = 64 << 10;  // workspace that a plan of any shape may use
constexpr int64_t kMax = int64_t{4} << 30;

// True if a library can read [B,T,N,D]: rows of D values must be aligned to 16 bytes. Blocks of an
// arena are aligned to 64.
bool rows_are_aligned(const Tensor& t) {
  constexpr int64_t kValues = 8;
  const int64_t width = t.size(3);
  if (t.offset() % kValues != 0) return false;
  for (const int dim : {0, 1, 2}) {
    if (t.size(dim) == 1) continue;
    if (t.stride(dim) % kValues != 0 || t.stride(dim) < width) return false;
  }
  return true;
}

// True if a window or chunk of `most` keys hides any in a call over this many queries and keys.
bool bounds(int64_t most, int64_t queries, int64_t keys) {
  return most > 0 && most < std::max(queries, keys);
}

template <class Args>
bool takes(const Args& args, std::initializer_list<const Tensor*> tensors) {
  const DType type = args.q.dtype();
  const int64_t queries = args.q.size(1), keys = args.k.size(1);
  if (type != DType::bf16 && type != DType::f16) return false;
  if (args.q_positions.defined() || args.window_start.defined() || args.window_end.defined())
    return false;
  if (args.dropout.p > 0 || args.soft_cap > 0 || args.sinks.defined() || args.bias.defined())
    return false;
  if (bounds(args.window, queries, keys) || bounds(args.chunk, queries, keys)) return false;
  if (args.causal && queries != keys) return false;
  if (args.q.size(0) == 0 || args.q.size(2) == 0 || args.lse.offset() % 4 != 0) return false;
  for (const int64_t length : {queries, keys}) {
    if (length < 128 || length % 64 != 0) return false;
  }
  for (const int64_t width : {args.q.size(3), args.v.size(3)}) {
    if (width == 0 || width % 8 != 0 || width > 256) return false;
  }
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const Tensor* t) { return rows_are_aligned(*t); });
}

int64_t heads_of(const AttentionBackwardArgs& args, int64_t samples, int64_t kv_heads) {
  return samples * kv_heads * (args.q.size(2) / args.k.size(2));
}

// Number of values of dq in f32.
int64_t dq_sums(const AttentionBackwardArgs& args, int64_t heads) {
  return heads * round_up(args.q.size(1), 128) * round_up(args.q.size(3), 16);
}

// Bytes that a library needs besides the gradients: gradients of all scores, unless any order is
// allowed; if key heads are shared, gradients of keys and values for each query head.
int64_t workspace_bytes(const AttentionBackwardArgs& args, int64_t heads, bool any_order) {
  const int64_t group = args.q.size(2) / args.k.size(2), size = size_of(args.q.dtype());
  const int64_t queries = round_up(args.q.size(1), 128), keys = round_up(args.k.size(1), 128);
  const int64_t scores = any_order ? 0 : heads * queries * keys * size;
  const int64_t each = group == 1 ? 0 : heads * keys * (args.q.size(3) + args.v.size(3)) * size;
  return scores + each + kSlack;
}

int64_t backward_bytes(const AttentionBackwardArgs& args, int64_t samples, int64_t kv_heads,
                       bool any_order) {
  const int64_t heads = heads_of(args, samples, kv_heads);
  const int64_t sums = any_order ? dq_sums(args, heads) * size_of(DType::f32) : 0;
  return workspace_bytes(args, heads, any_order) + sums;
}

template <class Fits>
int64_t largest_divisor(int64_t of, const Fits& fits) {
  for (int64_t part = of; part > 1; --part) {
    if (of % part == 0 && fits(part)) return part;
  }
  return 1;
}

}  // namespace

bool library_takes(const AttentionArgs& args) {
  return takes(args, {&args.q, &args.k, &args.v, &args.out});
}

bool library_takes(const AttentionBackwardArgs& args, bool any_order) {
  if (args.dq.dtype() != args.q.dtype() || args.beta_q != 0 || args.beta_kv != 0) return false;
  return takes(args,
               {&args.q, &args.k, &args.v, &args.out, &args.dout, &args.dq, &args.dk, &args.dv}) &&
         backward_bytes(args, 1, 1, any_order) <= kMax;
}

LibraryAttentionPart library_part(const AttentionArgs& args) {
  return {.samples = args.q.size(0), .kv_heads = args.k.size(2), .workspace = kSlack};
}

LibraryAttentionPart library_part(const AttentionBackwardArgs& args, int64_t most, bool any_order) {
  LibraryAttentionPart part;
  const int64_t samples = args.q.size(0), kv_heads = args.k.size(2);
  const auto fits = [&](int64_t s, int64_t h) {
    return backward_bytes(args, s, h, any_order) <= most;
  };
  part.kv_heads = fits(1, kv_heads)
                      ? kv_heads
                      : largest_divisor(kv_heads, [&](int64_t h) { return fits(1, h); });
  if (part.kv_heads == kv_heads)
    part.samples = largest_divisor(samples, [&](int64_t s) { return fits(s, kv_heads); });
  const int64_t heads = heads_of(args, part.samples, part.kv_heads);
  part.workspace = workspace_bytes(args, heads, any_order);
  if (any_order) {
    part.dq_sums = dq_sums(args, heads);
  } else {
    part.ordered = heads * args.q.size(1) * args.k.size(1) * size_of(args.q.dtype());
  }
  return part;
}

LibraryAttentionScratch library_attention_scratch(const AttentionArgs& args, Stream& stream) {
  LibraryAttentionScratch scratch;
  scratch.workspace = Tensor::empty(stream.scratch(), {library_part(args).workspace}, DType::u8,
                                    "attention workspace");
  return scratch;
}

LibraryAttentionScratch library_attention_scratch(const AttentionBackwardArgs& args,
                                                  Stream& stream) {
  const LibraryAttentionPart part =
      library_part(args, stream.attention_workspace(), stream.nondeterministic());
  const int64_t heads = args.q.size(2) / args.k.size(2) * part.kv_heads;
  Arena& arena = stream.scratch();
  LibraryAttentionScratch scratch;
  scratch.workspace = Tensor::empty(arena, {part.workspace}, DType::u8, "attention workspace");
  scratch.delta =
      Tensor::empty(arena, {part.samples, heads, args.q.size(1)}, DType::f32, "attention delta");
  if (part.dq_sums > 0)
    scratch.dq_sums = Tensor::empty(arena, {part.dq_sums}, DType::f32, "attention dq in f32");
  return scratch;
}

void ask_library_scratch(const AttentionArgs& args, Stream& stream) {
  if (library_takes(args)) library_attention_scratch(args, stream);
}

void ask_library_scratch(const AttentionBackwardArgs& args, Stream& stream) {
  if (library_takes(args, stream.nondeterministic())) library_attention_scratch(args, stream);
}

}  // namespace megatron::kernels::cuda
