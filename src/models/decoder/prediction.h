// One depth of multi-token prediction (PredictionValue), built as a block after the last layer.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "models/decoder/layer.h"
#include "nn/norm.h"
#include "nn/replicated_linear.h"

namespace megatron::models {

// What the depths share with the trunk.
struct Trunk {
  // The final norm of the trunk's output.
  std::function<Var(Tape&, const Bundle&)> final_norm;
  // The embeddings of the tokens [T] that a depth reads, with their factor.
  std::function<Var(Tape&, const Tensor& tokens)> embedding;
};

// Parameters of depth k of a model of N layers, "layers.<N + k - 1>." followed by
// embedding_norm.weight [H], hidden_norm.weight [H], projection.weight [H,2H] (for
// [embedding | hidden]), final_norm.weight [H] and those of a layer.
//
// The block of depth 1 takes the trunk's output, or {"trunk": after its final norm}, and returns
// {"trunk", "depth 1"}; each further one adds its own output. All are [T,H].
class PredictionDepth {
 public:
  // depth: 1, 2, ...
  PredictionDepth(nn::Builder& builder, const LayerPlace& place, int64_t depth, Trunk trunk);
  // Segments of its Block (models/stage.h); this must outlive it.
  std::vector<Segment> segments() const;

  // Name of a depth's output in the bundle; 0: the trunk's.
  static std::string output_name(int64_t depth);

 private:
  void enter(Tape& tape, Flow& flow, const nn::Batch& batch, Phase phase) const;
  void leave(Tape& tape, Flow& flow) const;

  int64_t depth_;
  bool detached_;
  Trunk trunk_;
  nn::AddNorm embedding_norm_, hidden_norm_;
  nn::ReplicatedLinear projection_;
  nn::Dropout dropout_;  // of the embeddings
  DecoderLayer layer_;
  nn::AddNorm final_norm_;
};

}  // namespace megatron::models
