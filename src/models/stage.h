// What training, pipelines and the planner see of a model: a list of segments with their
// parameters.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "autograd/tape.h"
#include "models/model.h"
#include "nn/batch.h"
#include "nn/builder.h"
#include "nn/module_state.h"
#include "nn/sequence_state.h"
#include "parallel/layer_layout.h"

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

// A chunk of a model that one pipeline stage holds; all of it where there is one.
class Stage {
 public:
  virtual ~Stage() = default;

  virtual const Model& model() const = 0;  // that it is a part of
  virtual const parallel::ModelPart& part() const = 0;
  // In order; with part().embedding the first is the embedding, which takes an empty bundle.
  virtual std::span<const Segment> segments() const = 0;
  // With part().head, after the last segment: loss of each token [T] (parallel/vocabulary.h; of a score that
  // is a number ops/squared_error.h), and the logits [T,V], or scores [T, score_labels].
  virtual Tensor loss(Tape& tape, const Bundle& in, const nn::Batch& batch) const = 0;
  virtual Var logits(Tape& tape, const Bundle& in) const = 0;
  // The logits that loss() is computed from: f32 (f64) [T,V], in every bit.
  virtual Tensor loss_logits(Tape& tape, const Bundle& in) const = 0;
  // What enters the output head [T,H].
  virtual Var final_norm(Tape& tape, const Bundle& in) const = 0;

  // Final norm, output and loss as a span.
  virtual const Span& head() const = 0;

  virtual std::span<parallel::ParameterSpec* const> parameters() const = 0;
  // Those that training changes without a gradient.
  virtual std::span<nn::ModuleState* const> states() const { return {}; }

  // What inference keeps of the tokens that it has read, by attention layer.
  virtual std::vector<nn::LayerCache> layer_caches() const = 0;
};

// Parameters, then states: the tensors of the model.
std::vector<parallel::ParameterSpec*> tensors_of(const Stage& stage);

// Every parameter and state gets its initial values, the same in any layout.
void initialize(const Stage& stage, uint64_t seed, Stream& stream);

// stage.loss() as a span of the tape.
Tensor head_loss(const Stage& stage, Tape& tape, const Bundle& in, const nn::Batch& batch);

// What forward does not keep but backward computes again (Chen et al. 2016; Korthikanti et al.
// 2022).
struct RecomputeOptions {
  enum class Granularity { none, selective, full } granularity = Granularity::none;
  // Of full. uniform: every `layers` layers in a row keep their input only; block: each of the
  // first `layers` layers of a chunk does, the others keep everything.
  enum class Method { uniform, block } method = Method::uniform;
  int64_t layers = 1;
  std::vector<std::string>
      modules;  // of selective: "core_attn", "mlp", "mlp_act", "layernorm", "moe", "moe_act"
  bool distribute =
      false;  // --distribute-saved-activations: each tensor rank keeps a slice of them
  const parallel::TensorParallel* tensor = nullptr;  // of `distribute`: those ranks; borrowed
};

// The first `layers` layers of a chunk have what they keep for backward in host memory. It comes
// back one layer ahead. Without recompute.
struct OffloadOptions {
  int64_t layers = 0;
};

// Runs every segment of a chunk as a span of the tape. in: what the virtual stage before gave ("hidden"
// alone); empty for the first. batch must outlive the tape. Recompute and offload change no bit,
// and nothing at all where the tape does not record.
Bundle forward(const Stage& stage, Tape& tape, const Bundle& in, const nn::Batch& batch,
               Phase phase, const RecomputeOptions& recompute = {},
               const OffloadOptions& offload = {});
// hidden + residual, what goes to the next virtual stage: [T,H] (tokens divided: [T/n,H]).
Var flowing(Tape& tape, const Bundle& bundle);

}  // namespace megatron::models
