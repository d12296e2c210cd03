#include "nn/text_mean.h"

#include "parallel/collectives.h"

namespace megatron::nn {
namespace {

struct OwnRows {
  parallel::Slice rows;
  Shape all;
};

void own_rows_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const auto& [rows, all] = backward.attributes<OwnRows>();
  const Tensor& dy = backward.gradient(0);
  Tensor dx = backward.empty(all, dy.dtype(), "own_rows.dx");
  backward.kernels().fill({.out = dx, .value = 0}, backward.stream());
  backward.kernels().copy({.x = dy, .out = dx.slice(0, rows.global_begin, rows.size)},
                          backward.stream());
  backward.set(0, dx);
}

// The rows that this rank holds between the matrix products. Its gradient of the others is 0.
Var own_rows(Tape& tape, const Var& x, const parallel::Slice& rows) {
  const Tensor part = x.value.slice(0, rows.global_begin, rows.size),
               own = tape.empty(part.shape(), part.dtype(), "own_rows");
  tape.kernels().copy({.x = part, .out = own}, tape.stream());
  Node node{.name = "own_rows", .inputs = {x.id}, .dgrad = own_rows_dgrad};
  node.attributes = OwnRows{rows, x.value.shape()};
  return tape.record_one(std::move(node), own);
}

}  // namespace

Var text_mean(Tape& tape, const Var& x, const Batch& batch, int64_t heads,
              const parallel::TensorParallel& tensor, const parallel::ContextParallel& context) {
  constexpr std::string_view kCall = "mean of a text";
  // Ranks that do not divide the tokens all have the same gradient of the means.
  const Var all_TH = tensor.divides_tokens() ? parallel::whole_rows(tape, x, tensor, kCall) : x;
  const parallel::TokenLayout& layout = batch.layout;
  const Shape shape = {layout.sequences, layout.held()};
  const Var v = ops::as_heads(tape, all_TH, layout.sequences, heads);
  const Tensor zeros = tape.empty(v.value.shape(), v.value.dtype(), "mean.zeros");
  tape.kernels().fill({.out = zeros, .value = 0}, tape.stream());
  ops::AttentionOptions options{.causal = false};
  if (batch.segment_starts.defined()) options.window_start = batch.segment_starts.view(shape);
  if (batch.segment_ends.defined()) options.window_end = batch.segment_ends.view(shape);
  const Var mean_TH =
      parallel::context_attention(tape, {.q = Var(zeros), .k = Var(zeros), .v = v, .gate = {}},
                                  options, batch.context_tokens, context);
  // Ranks that divide the tokens each compute the means of all.
  return tensor.divides_tokens() ? own_rows(tape, mean_TH, tensor.tokens(layout.rows())) : mean_TH;
}

}  // namespace megatron::nn
