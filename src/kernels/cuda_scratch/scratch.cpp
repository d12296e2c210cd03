#include "kernels/cuda_scratch/scratch.h"

#include <algorithm>

#include "base/divide.h"

namespace megatron::kernels::cuda {
namespace {

// Four blocks for each of the 132 multiprocessors of an H200: while a block waits for the sums of a
// row before it reads the next, others have their rows in flight. Their partial sums, 8.4 MB for a
// width of 4,096, stay in the second-level cache of 50 MB.
constexpr int64_t kMaxBlocks = 528;
constexpr int64_t kMinRows = 8;

}  // namespace

NormBlocks::NormBlocks(int64_t rows_)
    : rows(rows_),
      height(std::max(kMinRows, ceil_div(rows_, kMaxBlocks))),
      count(ceil_div(rows_, height)) {}

NormPartials norm_backward_scratch(const AddNormBackwardArgs& args, NormKind kind, Stream& stream) {
  const NormBlocks blocks(args.sum.size(0));
  const auto partials = [&](const char* label) {
    return Tensor::empty(stream.scratch(), {blocks.count, args.sum.size(1)}, DType::f32, label);
  };
  NormPartials all{partials("partial sums of dweight"), {}};
  if (kind == NormKind::layer && args.dbias.out.defined())
    all.dbiases = partials("partial sums of dbias");
  return all;
}

NormPartials head_norm_backward_scratch(const HeadNormBackwardArgs& args, Stream& stream) {
  const NormBlocks blocks(args.x.size(0));
  const Shape shape = {blocks.count, args.x.size(2)};
  NormPartials all;
  if (args.dweight.out.defined())
    all.dweights = Tensor::empty(stream.scratch(), shape, DType::f32, "partial sums of dweight");
  if (args.dbias.out.defined())
    all.dbiases = Tensor::empty(stream.scratch(), shape, DType::f32, "partial sums of dbias");
  return all;
}

Tensor gated_norm_backward_scratch(const GatedNormBackwardArgs& args, Stream& stream) {
  if (!args.dweight.out.defined()) return {};
  return Tensor::empty(stream.scratch(), {NormBlocks(args.x.size(0)).count, args.x.size(1)},
                       DType::f32, "partial sums of dweight");
}

ConvBlocks::ConvBlocks(int64_t tokens_)
    : tokens(tokens_),
      height(std::max<int64_t>(16, ceil_div(tokens_, 64))),
      count(ceil_div(tokens_, height)) {}

ConvPartials causal_conv_backward_scratch(const CausalConvBackwardArgs& args, Stream& stream) {
  const ConvBlocks blocks(args.x.size(0) * args.x.size(1));
  const auto partials = [&](const Accumulate& to, const char* label) {
    if (!to.out.defined()) return Tensor();
    return Tensor::empty(stream.scratch(), {blocks.count, to.out.elements()}, DType::f32, label);
  };
  return {partials(args.dweight, "partial sums of dweight"),
          partials(args.dbias, "partial sums of dbias")};
}

int64_t column_sum_height(int64_t rows) {
  constexpr int64_t kMin = 64, kMaxBlocks = 128;
  return std::max(kMin, ceil_div(rows, kMaxBlocks));
}

Tensor column_sum_scratch(const ColumnSumArgs& args, Stream& stream) {
  const int64_t rows = args.x.size(0), height = column_sum_height(rows);
  if (rows <= height) return {};
  return Tensor::empty(stream.scratch(), {ceil_div(rows, height), args.x.size(1)}, DType::f32,
                       "partial sums of rows");
}

Tensor embedding_backward_scratch(const EmbeddingBackwardArgs& args, Stream& stream) {
  const int64_t rows = args.dtable.out.size(0), tokens = args.ids.elements();
  return Tensor::empty(stream.scratch(), {2 * rows + 2 + tokens + std::min(rows, tokens)},
                       DType::i32, "tokens by row");
}

RouterBlocks::RouterBlocks(const RouterSumsArgs& args)
    : segments(args.counts.size(0)), tokens(args.logits.size(0) / segments) {
  constexpr int64_t kMinTokens = 32, kMaxBlocks = 256;
  height = std::max(kMinTokens, ceil_div(tokens, kMaxBlocks));
  count = ceil_div(tokens, height);
}

Tensor router_sums_scratch(const RouterSumsArgs& args, Stream& stream) {
  const RouterBlocks blocks(args);
  const Shape shape = {blocks.segments, blocks.count, 2 * args.logits.size(1) + 2};
  return Tensor::empty(stream.scratch(), shape, args.logits.dtype(), "partial sums of the router");
}

Tensor sinkhorn_scratch(const SinkhornArgs& args, Stream& stream) {
  const int64_t tokens = args.logits.size(0), experts = args.logits.size(1);
  return Tensor::empty(stream.scratch(), {(tokens + 1) * experts + tokens}, DType::f64, "sinkhorn");
}

Tensor expert_thresholds_scratch(const ExpertThresholdsArgs& args, Stream& stream) {
  return Tensor::empty(stream.scratch(), {args.logits.size(1), args.logits.size(0)},
                       args.logits.dtype(), "scores above a token's threshold");
}

SlotBlocks::SlotBlocks(const ExpertRowsArgs& args)
    : slots(args.experts.elements()),
      experts(args.offsets.size(0) - 1),
      segments(args.segment > 0 ? args.experts.size(0) / args.segment : 1),
      of_segment(segments > 0 ? slots / segments : 0),
      blocks_of_segment(ceil_div(of_segment, kHeight)),
      count(segments * blocks_of_segment) {}

ExpertRowsScratch expert_rows_scratch(const ExpertRowsArgs& args, Stream& stream) {
  const SlotBlocks blocks(args);
  const auto words = [&](const Shape& shape, const char* label) {
    return Tensor::empty(stream.scratch(), shape, DType::i32, label);
  };
  ExpertRowsScratch scratch;
  scratch.counts = words({blocks.count, blocks.experts}, "slots by expert");
  scratch.starts = words({blocks.segments + 1, blocks.experts}, "rows by segment");
  if (args.factor > 0) scratch.limits = words({blocks.segments}, "capacities of segments");
  if (args.capacity == 0 || args.kept == KeptRows::first) return scratch;
  scratch.offsets = words({blocks.experts + 1}, "experts of all slots");
  scratch.list = words({blocks.slots}, "all slots by expert");
  scratch.choices = words({blocks.slots}, "experts of kept slots");
  return scratch;
}

}  // namespace megatron::kernels::cuda
