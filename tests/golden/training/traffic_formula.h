// Closed forms of the bytes that a rank sends in a step, to compare with the counted calls.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "models/model.h"
#include "parallel/data_parallel.h"
#include "parallel/layer_layout.h"

namespace megatron::plan {

// Assumes the best known algorithms (comm/traffic.h): an all-reduce of b bytes sends 2 (n-1)/n b,
// an all-gather or a reduce-scatter (n-1)/n b. Excludes the few scalars that a step sums for its
// loss ("step.totals") and gradient norm ("gradient norm").
struct TrafficShape {
  models::Model model;
  DType type = DType::f32;                // f32 or bf16; gradients are f32
  int64_t micro_batches = 1, tokens = 1;  // tokens: per micro-batch
};

// Tensor parallelism of n ranks over a whole model, with A = [T,H]. Each layer makes two
// all-reduces of A in forward and two in backward (Shoeybi et al. 2019, section 3). The embedding's
// output and the gradient of the head's input count as one more layer. If tokens are divided
// (`sequence`), each all-reduce becomes a reduce-scatter and an all-gather. Backward then also
// gathers the input of each layer's two column products again, because forward does not keep it
// (Korthikanti et al. 2022, section 4.2.2), and gradients of undivided parameters are summed once
// per step. The loss takes three f32 numbers per token and rank. If there are fewer key groups than
// ranks, the ranks of a group gather its keys and values [T, 2 k] in each layer, and backward
// scatters their gradients.
double tensor_parallel_bytes(const TrafficShape& shape, int ranks, bool sequence);

// Number of a model's parameters in each span.
struct SpanElements {
  std::vector<int64_t> spans;  // embedding, each layer, head; without shared parameters
  int64_t shared = 0;          // the embedding, if it is also the output's weight

  int64_t total() const;
};
SpanElements span_elements(const models::Model& model);

// Data parallelism of n ranks over P parameters. Without sharding: one all-reduce of the gradients.
// From Sharding::optimizer on: a reduce-scatter of the gradients and an all-gather of the
// parameters (Rajbhandari et al. 2020, section 7). From Sharding::gradients on: a reduce-scatter
// per micro-batch (per step for shared parameters). With sharded parameters: all-gathers for the
// forward and the backward pass of each micro-batch, except for spans that are still present when
// the pass turns: the last one and, with overlap_gather, the one before it. Between micro-batches
// the same holds for the first span, and for the second. Shared parameters have a place in each of
// their spans. Padding between shards counts as parameters.
double data_parallel_bytes(const TrafficShape& shape, const SpanElements& parameters, int ranks,
                           const parallel::DataParallelOptions& options);

// Bytes that a stage sends: for each of its pieces and micro-batches, A to the stage of the next
// piece and a gradient of the same size to the stage of the previous one. The first and last stage
// of a tied model also make one all-reduce of the embedding's gradient.
double pipeline_bytes(const TrafficShape& shape, const parallel::PipelineShape& pipeline,
                      int stage);

}  // namespace megatron::plan
