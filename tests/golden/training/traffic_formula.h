// How many bytes a rank sends in a step, in closed form: what the counted calls come to.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "models/model.h"
#include "parallel/data_parallel.h"
#include "parallel/layer_layout.h"

namespace megatron::plan {

// By the best known algorithms (comm/traffic.h): an all-reduce of b bytes sends 2 (n-1)/n b, an
// all-gather or a reduce-scatter (n-1)/n b. Not counted: the few numbers of a step that are summed
// for its loss ("step.totals") and gradient norm ("gradient norm").
struct TrafficShape {
  models::Model model;
  DType type = DType::f32;                // f32 or bf16; gradients are f32
  int64_t micro_batches = 1, tokens = 1;  // tokens: of a micro-batch
};

// Tensor parallelism of n ranks over a whole model; A = [T,H]. Each layer: two all-reduces of A
// forward and two backward (Shoeybi et al. 2019, section 3), and as one layer more the embedding's
// output and the gradient of what enters the head. Tokens divided (`sequence`): each becomes a
// reduce-scatter and an all-gather, and backward gathers the input of each layer's two column
// products once more, which the forward pass does not keep (Korthikanti et al. 2022, section
// 4.2.2); the gradients of what is not divided are summed once a step. Three f32 numbers a token
// and rank for the loss. Where there are fewer key groups than ranks, the ranks of a group gather
// its keys and values [T, 2 k] in each layer, and backward scatters their gradients.
double tensor_parallel_bytes(const TrafficShape& shape, int ranks, bool sequence);

// A model's parameters by spans, in elements.
struct SpanElements {
  std::vector<int64_t> spans;  // embedding, each layer, head; without what two of them use
  int64_t shared = 0;          // the embedding that is the output's weight, too

  int64_t total() const;
};
SpanElements span_elements(const models::Model& model);

// Data parallelism of n ranks over P parameters: one all-reduce of the gradients; from
// Sharding::optimizer on a reduce-scatter of them and an all-gather of the parameters (Rajbhandari
// et al. 2020, section 7), from gradients on a reduce-scatter a micro-batch (of what is shared: a
// step), and with parameters all-gathers for the forward and for the backward of each micro-batch,
// but of the spans that are still there where the pass turns: the last one and, with
// overlap_gather, the one before; and between micro-batches the first, and the second. What is
// shared has a place in each of its spans. Padding between shards counts as parameters.
double data_parallel_bytes(const TrafficShape& shape, const SpanElements& parameters, int ranks,
                           const parallel::DataParallelOptions& options);

// What a stage sends: A to the stage of the next piece and a gradient like it to that of the piece
// before, for each of its pieces and micro-batches; first and last stage of a tied model an
// all-reduce of the embedding's gradient, once.
double pipeline_bytes(const TrafficShape& shape, const parallel::PipelineShape& pipeline,
                      int stage);

}  // namespace megatron::plan
