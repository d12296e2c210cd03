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

// Sums of every block of query rows, for each of its heads (kernels/cuda/attention/bias.h).
Tensor bias_sums(const AttentionBackwardArgs& args, const AttentionBlocks& blocks, Stream& stream) {
  if (!args.dbias.out.defined()) return {};
  const int64_t slots = args.bias.size(0) + 2 * kAttentionThreads;
  return Tensor::empty(stream.scratch(),
                       {args.q.size(0) * args.q.size(2), blocks.row_blocks, slots}, DType::f32,
                       "attention bias gradients");
}

}  // namespace

void check_attention_sizes(const char* kernel, const Tensor& q, const Tensor& k, int64_t width,
                           int64_t keys) {
  const int64_t rows = q.size(1) * (q.size(2) / k.size(2));
  MG_CHECK(width <= kAttentionWidth,
           "{} on CUDA supports a head size of up to {}, not {}: use more, narrower heads", kernel,
           kAttentionWidth, width);
  constexpr int64_t kMax = int64_t{1} << 30;
  MG_CHECK(rows <= kMax && keys <= kMax,
           "{} on CUDA supports up to {} queries (over all heads of a query group) and as many "
           "keys, not {} and {}: use shorter sequences",
           kernel, kMax, rows, keys);
  const int64_t blocks = std::max(rows, keys) / kFewRows + 1, heads = q.size(0) * k.size(2);
  MG_CHECK(blocks * heads <= kMax,
           "{} on CUDA: {} sequences of {} tokens exceed the limit: use fewer", kernel, q.size(0),
           std::max(q.size(1), keys));
}

AttentionBlocks forward_blocks(const AttentionArgs& args) {
  const int64_t rows = args.q.size(1) * (args.q.size(2) / args.k.size(2));
  const int64_t width = head_width(args);
  const AttentionTile tile =
      on_tensor_cores(args)
          ? tensor_core_forward_tile(tensor_core_width(width), args.bias.defined())
          : forward_tile(tile_width(width), rows <= kFewRows);
  return blocks_of(args, tile.rows, tile.others);
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
  return {.spans = spans(args, forward_blocks(args), stream)};
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
