#include "kernels/cuda_scratch/attention.h"

#include <algorithm>

#include "base/divide.h"
#include "base/error.h"

namespace megatron::kernels::cuda {
namespace {

template <class Args>
AttentionBlocks blocks_of(const Args& args, int64_t row_tile, int64_t key_tile) {
  const Tensor &q = args.q, &k = args.k;
  AttentionBlocks blocks{.row_tile = row_tile, .key_tile = key_tile};
  const int64_t rows = q.size(1) * (q.size(2) / k.size(2));
  blocks.row_blocks = ceil_div(rows, row_tile);
  blocks.key_blocks = ceil_div(args.keys(), key_tile);
  blocks.span_words = q.size(0) * (4 * blocks.row_blocks + 2 * blocks.key_blocks + 1);
  return blocks;
}

AttentionTile gradient_tile_of(const AttentionBackwardArgs& args) {
  const int64_t width = head_width(args);
  return on_tensor_cores(args)
             ? tensor_core_gradient_tile(tensor_core_width(width), args.bias.defined())
             : gradient_tile(tile_width(width));
}

template <class Args>
Tensor spans(const Args& args, const AttentionBlocks& blocks, Stream& stream) {
  if (!args.q_positions.defined() && !args.window_start.defined() && !args.window_end.defined())
    return {};
  return Tensor::empty(stream.scratch(), {blocks.span_words}, DType::i32, "attention spans");
}

void check_width(const char* kernel, int64_t width) {
  MG_CHECK(width <= kAttentionWidth,
           "{} on CUDA supports a head size of up to {}, not {}: use more, narrower heads", kernel,
           kAttentionWidth, width);
}

template <class Args>
void check_counts(const char* kernel, const Args& args) {
  const int64_t samples = args.q.size(0), kv_heads = args.k.size(2), keys = args.keys();
  const int64_t rows = args.q.size(1) * (args.q.size(2) / kv_heads);
  constexpr int64_t kMax = int64_t{1} << 30;
  MG_CHECK(rows <= kMax && keys <= kMax,
           "{} on CUDA supports up to {} queries (over all heads of a query group) and as many "
           "keys, not {} and {}: use shorter sequences",
           kernel, kMax, rows, keys);
  const int64_t blocks = std::max(rows, keys) / kFewRows + 1, heads = samples * kv_heads;
  MG_CHECK(blocks * heads <= kMax,
           "{} on CUDA: {} sequences of {} tokens exceed the limit: use fewer", kernel, samples,
           std::max(args.q.size(1), keys));
}

// Sums of every block of query rows, for each of its heads (kernels/cuda/attention/bias.h).
Tensor bias_sums(const AttentionBackwardArgs& args, const AttentionBlocks& blocks, Stream& stream) {
  if (!args.dbias.out.defined()) return {};
  const int64_t slots = args.bias.size(0) + 2 * kAttentionThreads;
  return Tensor::empty(stream.scratch(),
                       {args.q.size(0) * args.q.size(2), blocks.row_blocks, slots}, DType::f32,
                       "attention bias gradients");
}

}  // namespace

bool is_latent(const AttentionArgs& args) {
  const Tensor &k = args.k, &v = args.v;
  return are_latents(args) && !args.bias.defined() && k.size(3) > kAttentionWidth &&
         k.size(3) <= kLatentKey && v.size(3) <= kLatentValue;
}

void check_attention_sizes(const char* kernel, const AttentionArgs& args) {
  if (!is_latent(args)) check_width(kernel, head_width(args));
  check_counts(kernel, args);
}

void check_attention_sizes(const char* kernel, const AttentionBackwardArgs& args) {
  check_width(kernel, head_width(args));
  check_counts(kernel, args);
}

AttentionBlocks forward_blocks(const AttentionArgs& args) {
  const int64_t rows = args.q.size(1) * (args.q.size(2) / args.k.size(2));
  const int64_t width = head_width(args);
  const AttentionTile tile =
      is_latent(args) ? latent_tile(args.q.dtype() != DType::f32, rows)
      : on_tensor_cores(args)
          ? tensor_core_forward_tile(tensor_core_width(width), args.bias.defined())
          : forward_tile(tile_width(width), rows <= kFewRows);
  return blocks_of(args, tile.rows, tile.others);
}

LatentParts latent_parts(const AttentionArgs& args) {
  constexpr int64_t kMaxBytes = int64_t{64} << 20;
  const AttentionBlocks blocks = forward_blocks(args);
  const int64_t ranges = std::max<int64_t>(1, ceil_div(args.keys(), kLatentRange)),
                units = blocks.row_blocks * args.q.size(0);
  if (ranges == 1) return {.ranges = 1, .units = units};
  const int64_t bytes = ranges * blocks.row_tile * kLatentValue * size_of(DType::f32);
  return {.ranges = ranges, .units = std::min(units, std::max<int64_t>(1, kMaxBytes / bytes))};
}

AttentionBlocks query_gradient_blocks(const AttentionBackwardArgs& args) {
  const AttentionTile tile = gradient_tile_of(args);
  return blocks_of(args, tile.rows, tile.others);
}

AttentionBlocks key_gradient_blocks(const AttentionBackwardArgs& args) {
  const AttentionTile tile = gradient_tile_of(args);
  return blocks_of(args, tile.others, tile.rows);
}

AttentionScratch attention_scratch(const AttentionArgs& args, Stream& stream) {
  const AttentionBlocks blocks = forward_blocks(args);
  AttentionScratch scratch{.spans = spans(args, blocks, stream)};
  if (!is_latent(args)) return scratch;
  const LatentParts parts = latent_parts(args);
  if (parts.ranges == 1) return scratch;
  const auto of_rows = [&](int64_t width) {
    return Tensor::empty(stream.scratch(), {parts.units * parts.ranges, blocks.row_tile, width},
                         DType::f32, "latent attention by ranges");
  };
  scratch.sums = of_rows(kLatentValue);
  scratch.weights = of_rows(2);
  return scratch;
}

AttentionBackwardScratch attention_backward_scratch(const AttentionBackwardArgs& args,
                                                    Stream& stream) {
  const Shape shape = {args.q.size(0), args.q.size(2), args.q.size(1)};
  return {.delta = Tensor::empty(stream.scratch(), shape, DType::f32, "attention delta"),
          .query_spans = spans(args, query_gradient_blocks(args), stream),
          .key_spans = spans(args, key_gradient_blocks(args), stream),
          .bias_sums = bias_sums(args, query_gradient_blocks(args), stream)};
}

}  // namespace megatron::kernels::cuda
