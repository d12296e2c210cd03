// Tiling of this program's attention on CUDA, and its scratch memory, which is requested by the
// kernels, and by meta when a run is planned for CUDA.
#pragma once

#include <algorithm>

#include "device/stream.h"
#include "kernels/latents.h"

namespace megatron::kernels::cuda {

// Maximum width of a head. Tiles of queries, keys and values have one width, that of the wider.
inline constexpr int64_t kAttentionWidth = 256;
template <class Args>
int64_t head_width(const Args& args) {
  return std::max(args.q.size(3), args.v.size(3));
}
// Throws Error naming the kernel for wider heads that are not latents, and for more work than 32
// bits can index.
void check_attention_sizes(const char* kernel, const AttentionArgs& args);
void check_attention_sizes(const char* kernel, const AttentionBackwardArgs& args);

inline constexpr int kAttentionThreads = 128;  // of a thread block

// A thread block computes `rows` rows of results and iterates over the opposite side in tiles of
// `others`. Query rows belong to a key head: its queries times the query heads that share it, heads
// first, so that keys and values are read once for all of them.
struct AttentionTile {
  int rows, others;
};
// Number of columns to which a head's width is padded in the tiles.
constexpr int tile_width(int64_t width) { return width <= 64 ? 64 : width <= 128 ? 128 : 256; }

// A row's bits depend on `others` but not on `rows`, so calls with few rows can use smaller blocks.
inline constexpr int kFewRows = 8;
constexpr AttentionTile forward_tile(int width, bool few_rows) {
  const int rows = few_rows ? kFewRows : width == 256 ? 32 : 64;
  return {rows, width == 64 ? 64 : 32};
}
// Either rows are queries and others are keys, or vice versa.
constexpr AttentionTile gradient_tile(int width) {
  return {width == 256 ? 32 : 64, width == 64 ? 64 : width == 128 ? 32 : 16};
}

// Tensor cores compute bf16 and f16 for heads up to 128 wide, in tiles of a separate width, which
// is the same for few and many rows.
inline constexpr int64_t kTensorCoreWidth = 128;
inline bool on_tensor_cores(DType type, int64_t width) {
  return (type == DType::bf16 || type == DType::f16) && width <= kTensorCoreWidth;
}
template <class Args>
bool on_tensor_cores(const Args& args) {
  return on_tensor_cores(args.q.dtype(), head_width(args));
}
constexpr int tensor_core_width(int64_t width) {
  return width <= 64 ? 64 : width <= 80 ? 80 : width <= 96 ? 96 : 128;
}
// With a bias there are fewer registers for tiles.
constexpr AttentionTile tensor_core_forward_tile(int width, bool biased) {
  return {biased ? 64 : 128, width == 64 ? 64 : 32};
}
constexpr AttentionTile tensor_core_gradient_tile(int width, bool biased) {
  return {64, width == 64 && !biased ? 64 : 32};
}

// Latents in pages (multi-latent attention in absorbed form, nn/latent_state.h) have their own
// kernels, since their heads may be wider: one key head of up to kLatentKey elements, of which the
// first, up to kLatentValue, are also its values. DeepSeek's have 512 and a rotary key of 64.
inline constexpr int64_t kLatentKey = 576, kLatentValue = 512;
constexpr bool supports_latents(int64_t key, int64_t value) {
  return key <= kAttentionWidth || (key <= kLatentKey && value <= kLatentValue);
}
// True for calls that these kernels compute: with narrower heads, or with a bias, the others do.
bool is_latent(const AttentionArgs& args);
// A row's bits depend on `others` and on kLatentRange, but not on `rows`.
inline constexpr int kFewLatentRows = 32;
constexpr AttentionTile latent_tile(bool tensor_cores, int64_t rows) {
  return {tensor_cores && rows > kFewLatentRows ? 64 : 16, 32};
}
// Blocks of query rows and keys in one call.
struct AttentionBlocks {
  int64_t row_tile, key_tile;
  int64_t row_blocks, key_blocks;  // per sample and key head
  int64_t span_words;              // i32 words of the spans of all samples (AttentionSpans)
};
AttentionBlocks forward_blocks(const AttentionArgs& args);
// Ranges of keys in a call to latents, and the largest number of row blocks, over all samples, that
// one launch computes: their results for each range take up to 64 MiB.
struct LatentParts {
  int64_t ranges, units;
};
LatentParts latent_parts(const AttentionArgs& args);
AttentionBlocks query_gradient_blocks(const AttentionBackwardArgs& args);
AttentionBlocks key_gradient_blocks(const AttentionBackwardArgs& args);

// Position spans of every block (i32; kernels/cuda/attention/places.h), undefined if they follow
// from indices alone. Results of latents over several ranges of keys, in f32: sums of values for
// each range and row of a launch, and the row's largest score and sum of weights.
struct AttentionScratch {
  Tensor spans;
  Tensor sums, weights;  // [units * ranges, rows of a tile, kLatentValue], [..., 2]
};
AttentionScratch attention_scratch(const AttentionArgs& args, Stream& stream);
struct AttentionBackwardScratch {
  Tensor delta;                   // [B,N,T] f32: sum of dout * out
  Tensor query_spans, key_spans;  // for query_gradient_blocks and key_gradient_blocks
  Tensor bias_sums;               // f32, of each block of rows; with dbias only
};
AttentionBackwardScratch attention_backward_scratch(const AttentionBackwardArgs& args,
                                                    Stream& stream);

}  // namespace megatron::kernels::cuda
