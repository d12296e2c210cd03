// What training, pipelines and the planner see of a model: a list of segments with their
// parameters.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "autograd/tape.h"
#include "nn/batch.h"
#include "nn/builder.h"

namespace megatron::models {

// What a forward pass is for: dropout acts in train only.
enum class Phase { train, evaluate };

// A stretch of the model that can be scheduled and recomputed by itself. It takes and gives a
// Bundle with "hidden" and "residual" [T,H]: the value that flows is hidden + residual (residual
// undefined: hidden alone).
struct Segment {
  Span span;
  std::function<Bundle(Tape&, const Bundle&, const nn::Batch&, Phase)> forward;
};

class Stage {
 public:
  virtual ~Stage() = default;

  // In order; those of the first stage begin with the embedding.
  virtual std::span<const Segment> segments() const = 0;
  // After the last segment of the last stage: loss of each token [T] (ops/linear_cross_entropy.h),
  // and the logits [T,V].
  virtual Tensor loss(Tape& tape, const Bundle& in, const nn::Batch& batch) const = 0;
  virtual Var logits(Tape& tape, const Bundle& in) const = 0;
  // What enters the output head [T,H].
  virtual Var final_norm(Tape& tape, const Bundle& in) const = 0;

  // Final norm, output and loss as a span.
  virtual const Span& head() const = 0;

  virtual std::span<parallel::Placed* const> parameters() const = 0;
};

// stage.loss() as a span of the tape.
Tensor head_loss(const Stage& stage, Tape& tape, const Bundle& in, const nn::Batch& batch);

// Runs every segment as a span of the tape. `recompute` keeps only the segments' inputs. batch must
// outlive the tape.
Bundle forward(const Stage& stage, Tape& tape, const nn::Batch& batch, Phase phase,
               bool recompute = false);

}  // namespace megatron::models
