// What training, pipelines and the planner see of a model: blocks, their segments and parameters.
#pragma once

#include <any>
#include <functional>
#include <memory>
#include <optional>
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

// What flows from part to part of a layer.
struct Flow {
  Bundle bundle;
  std::any under_way;  // within a layer: what its next part goes on with
};
// A stretch of the model that can be scheduled by itself.
using Segment = std::function<void(Tape&, Flow&, const nn::Batch&, Phase)>;
// What is recomputed, gathered and offloaded together: the embedding, or a layer. Several segments where calls to other
// ranks may be under way between them. The first takes and the last gives a Bundle with "hidden" and "residual" [T,H]:
// the value that flows is hidden + residual (residual undefined: hidden alone).
struct Block {
  Span span;
  std::vector<Segment> segments;

  // All of them, as a span of the tape.
  Bundle operator()(Tape& tape, const Bundle& in, const nn::Batch& batch, Phase phase) const;
};

// A chunk of a model that one pipeline stage holds; all of it where there is one.
class Stage {
 public:
  virtual ~Stage() = default;

  virtual const Model& model() const = 0;  // that it is a part of
  virtual const parallel::ModelPart& part() const = 0;
  // In order; with part().embedding the first is the embedding, which takes an empty bundle.
  virtual std::span<const Block> blocks() const = 0;
  // With part().head, after the last layer: loss of each token [T] (parallel/vocabulary.h; of a score that
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

  // Sums over the micro-batches of a step.
  virtual std::span<nn::StepSum* const> step_sums() const { return {}; }

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

// Runs every layer of a chunk as a span of the tape. in: what the virtual stage before gave ("hidden"
// alone); empty for the first. batch must outlive the tape. Recompute and offload change no bit,
// and nothing at all where the tape does not record.
Bundle forward(const Stage& stage, Tape& tape, const Bundle& in, const nn::Batch& batch,
               Phase phase, const RecomputeOptions& recompute = {},
               const OffloadOptions& offload = {});

// The same forward pass in parts, each of which ends between two segments of a layer, where backward can stop, too
// (Tape::stop). All that is given is borrowed. Without offload, and without recompute of whole layers.
class ForwardInParts {
 public:
  ForwardInParts(const Stage& stage, Tape& tape, const Bundle& in, const nn::Batch& batch,
                 Phase phase, const RecomputeOptions& recompute);
  // To the next such place, or to the end of the last layer; where that has been reached: nothing.
  void advance();
  // advance() until the end.
  Bundle finish();

 private:
  const Stage& stage_;
  Tape& tape_;
  const nn::Batch& batch_;
  Phase phase_;
  std::vector<std::string> recompute_;
  Flow flow_;
  size_t layer_ = 0, segment_ = 0;  // that come next
};

// hidden + residual, what goes to the next virtual stage: [T,H] (tokens divided: [T/n,H]).
Var flowing(Tape& tape, const Bundle& bundle);

}  // namespace megatron::models
