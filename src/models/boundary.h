// What crosses from one virtual stage of a pipeline to the next.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "autograd/tape.h"
#include "parallel/pipeline.h"

namespace megatron::models {

class Stage;

// The two edges of a chunk: what it takes from the chunk before, and what it passes on.
enum class Edge { entry, exit };

// A tensor [rows, width], by its name in the Bundle. Its rows are tokens that this rank holds
// outside the matrix products, those of the batch or of its encoder's texts; or of a table.
struct BoundaryTensor {
  std::string_view name;
  bool of_encoder = false;  // read by the encoder's layers only; or the encoder's output
  bool predicted = false;   // of a depth of multi-token prediction; absent in Phase::evaluate
  int64_t rows = 0;         // of a table; 0: tokens
  int64_t width = 0;        // 0: the model's hidden size
  bool wide = false;        // f32 (f64) in place of the model's type
};

// Numbers of such tokens in a micro-batch, and whether the pass has the depths of prediction.
struct BoundaryRows {
  int64_t tokens = 0, of_encoder = 0;
  bool predicts = true;
};

// Forms of the tensors at a chunk's edge, in their order. With no rows of the encoder, its tensors
// are left out, and so are those of the depths in a pass without them.
struct TensorForm {
  Shape shape;
  DType type;
};
std::vector<TensorForm> boundary_forms(const Stage& stage, Edge edge, const BoundaryRows& rows,
                                       DType type);
// New memory for them, or for their gradients.
parallel::Payload make_payload(std::span<const TensorForm> forms, Runtime& runtime,
                               std::string_view label);

// The Bundle that a chunk takes. vars: in the order of its entry; without those of the encoder in a
// pass that reads no text of it, and of the depths in a pass without them.
Bundle entering(const Stage& stage, std::span<const Var> vars);
Bundle entering(const Stage& stage, const parallel::Payload& payload);
// What a chunk passes on, in the order of its exit: "hidden" is hidden + residual.
std::vector<Var> leaving(const Stage& stage, Tape& tape, const Bundle& out);
parallel::Payload leaving_values(const Stage& stage, Tape& tape, const Bundle& out);

}  // namespace megatron::models
