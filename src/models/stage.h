// Interface of a model for training, pipelines and the planner: blocks, their segments and
// parameters.
#pragma once

#include <any>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "autograd/tape.h"
#include "models/boundary.h"
#include "models/model.h"
#include "nn/batch.h"
#include "nn/builder.h"
#include "nn/module_state.h"
#include "nn/sequence_state.h"
#include "parallel/layer_layout.h"

namespace megatron::models {

// Purpose of a forward pass; dropout acts in train only. evaluate leaves out the depths of
// multi-token prediction, validate has them.
enum class Phase { train, evaluate, validate };

// Values passed between the parts of a layer.
struct Flow {
  Bundle bundle;
  std::any in_flight;  // state that the next part of the same layer needs
};
// A section of the model that can be scheduled by itself.
using Segment = std::function<void(Tape&, Flow&, const nn::Batch&, Phase)>;
// Names in a Bundle: the value that layers pass on; the output of an encoder, and, while an encoder
// reads its text, the embeddings of the decoder's; the output of the embedding, if layers read it.
inline constexpr std::string_view kHidden = "hidden", kEncoded = "encoded", kTarget = "target",
                                  kEmbedded = "embedded";

// Unit of recompute, gathering and offload: the embedding, or a layer. It has several segments if
// calls to other ranks may be in flight between them. The first segment takes and the last one
// returns a Bundle with "hidden" and "residual" [T,H]: the value passed on is hidden + residual
// (residual undefined: hidden alone). Other tensors of the Bundle are passed on as they are.
struct Block {
  Span span;
  std::vector<Segment> segments;
  // A depth of multi-token prediction, after the last layer: it passes on other values, which only
  // the head reads, and is left out in Phase::evaluate.
  bool predicts = false;
  // A block of the encoder: its segments get the batch of the encoder's texts (nn::Batch::encoder),
  // and are left out of passes that read none.
  bool of_encoder = false;
  // A layer, or a depth of prediction; false: the embedding, or the norm after an encoder.
  bool layer = false;

  // Runs all segments, as a span of the tape.
  Bundle operator()(Tape& tape, const Bundle& in, const nn::Batch& batch, Phase phase) const;
};

// True if an encoder-decoder's pass reads texts of the encoder. If it does not, a state holds what
// the encoder has read.
bool reads_encoder(const nn::Batch& batch);

// Results of a depth of multi-token prediction, f32 (f64) [T]: the loss of each token's label
// (nn::PredictedTokens), and 1 where no logit of the depth is above the label's, else 0. Both are 0
// where the label's loss weight is.
struct PredictionLosses {
  Tensor losses, hits;
};

// A chunk of a model held by one pipeline stage; the whole model if there is only one.
class Stage {
 public:
  virtual ~Stage() = default;

  virtual const Model& model() const = 0;  // the model that it is part of
  virtual const parallel::ModelPart& part() const = 0;
  // The blocks in order; with part().embedding the first is the embedding, which takes an empty
  // bundle.
  virtual std::span<const Block> blocks() const = 0;
  // The tensors that cross an edge of the chunk, in the order in which they are sent: by default
  // "hidden" alone. Nothing enters a chunk with part().embedding or leaves one with part().head.
  // In a pass without texts for the encoder, the stages do not send the encoder's tensors.
  virtual std::span<const BoundaryTensor> boundary(Edge edge) const;
  // With part().head, after the last layer: the loss of each token [T] (parallel/vocabulary.h; for
  // a score that is a number, ops/squared_error.h), and the logits [T,V] or scores [T,
  // score_labels].
  virtual Tensor loss(Tape& tape, const Bundle& in, const nn::Batch& batch) const = 0;
  // The losses of the depths whose outputs are in the bundle. In Pass::forward loss() has them in
  // the objective and reports them; here nothing is reported.
  virtual std::vector<PredictionLosses> prediction_losses(Tape&, const Bundle&,
                                                          const nn::Batch&) const {
    return {};
  }
  virtual Var logits(Tape& tape, const Bundle& in, const nn::Batch& batch) const = 0;
  // Logits [T,2] of a model with a head for pairs of texts (ModelFacts::pair_head).
  virtual Var pair_logits(Tape&, const Bundle&) const { return {}; }
  // What an objective (training/objective.h) reads, with a gradient: the log-probability of each
  // token's label [T], 0 for tokens that are not in batch.labelled
  // (parallel/token_log_probabilities.h; with batch.labelled.squares [T,2]). With a head for pairs
  // [T,2]: also the log-probability of the pair's label, in batch.pairs. For a model that scores
  // texts: the scores [T, score_labels]. For one without a head (ModelFacts::headless): the hidden
  // states [T,H].
  virtual Var objective_values(Tape& tape, const Bundle& in, const nn::Batch& batch) const = 0;
  // Entropies of the next tokens of those in batch.labelled [R] (parallel/token_entropies()); not
  // recorded. Undefined for a model that has none.
  virtual Tensor entropies(Tape&, const Bundle&, const nn::Batch&) const { return {}; }
  // The logits from which loss() is computed, bit for bit: f32 (f64) [T,V].
  virtual Tensor loss_logits(Tape& tape, const Bundle& in) const = 0;
  // Input of the output head [T,H].
  virtual Var final_norm(Tape& tape, const Bundle& in) const = 0;
  // Input of the output layer [T,H], which differs if the head transforms its own
  // (HeadTransform).
  virtual Var output_input(Tape& tape, const Bundle& in) const { return final_norm(tape, in); }

  // Final norm, output and loss as a span.
  virtual const Span& head() const = 0;

  virtual std::span<parallel::ParameterSpec* const> parameters() const = 0;
  // The adapters of its linear layers, by the name of the matrix's parameter.
  virtual std::span<const std::pair<std::string, ops::LowRank>> adapters() const { return {}; }
  // The adapters of its experts, in the same way.
  virtual std::span<const std::pair<std::string, ops::ExpertLowRank>> expert_adapters() const {
    return {};
  }
  // Module states, which training changes without a gradient.
  virtual std::span<nn::ModuleState* const> states() const { return {}; }

  // Sums over the micro-batches of a step.
  virtual std::span<nn::StepSum* const> step_sums() const { return {}; }

  // Description of what inference caches for the tokens it has read, per attention layer.
  virtual std::vector<nn::LayerCache> layer_caches() const = 0;
};

// The tensors of the model: parameters, then states other than those of training.
std::vector<parallel::ParameterSpec*> tensors_of(const Stage& stage);

// While it exists, products of the stages are computed in the type of the model.
class HighPrecision {
 public:
  explicit HighPrecision(std::span<const Stage* const> stages);
  ~HighPrecision();
  HighPrecision(const HighPrecision&) = delete;
  HighPrecision& operator=(const HighPrecision&) = delete;

 private:
  std::vector<LowPrecision*> changed_;
};

// Sets every such tensor to its initial values, which are the same in any layout.
void initialize(const Stage& stage, uint64_t seed, Stream& stream);

// stage.loss() as a span of the tape. entropies: set to stage.entropies(), unless null.
Tensor head_loss(const Stage& stage, Tape& tape, const Bundle& in, const nn::Batch& batch,
                 Tensor* entropies = nullptr);

// stage.prediction_losses() as a span of the tape.
std::vector<PredictionLosses> head_prediction_losses(const Stage& stage, Tape& tape,
                                                     const Bundle& in, const nn::Batch& batch);

// stage.objective_values() as a span of the tape.
Var head_objective_values(const Stage& stage, Tape& tape, const Bundle& in, const nn::Batch& batch,
                          Tensor* entropies = nullptr);

// Activations that forward discards and backward recomputes (Chen et al. 2016; Korthikanti et al.
// 2022).
struct RecomputeOptions {
  enum class Granularity { none, selective, full } granularity = Granularity::none;
  // Method of full recompute. uniform: each group of `layers` consecutive layers keeps only its
  // input; block: each of the first `layers` layers of a chunk keeps only its input, the others
  // keep everything.
  enum class Method { uniform, block } method = Method::uniform;
  int64_t layers = 1;
  std::vector<std::string> modules;  // of selective: "core_attn", "mla_up_proj", "mlp", "mlp_act",
                                     // "layernorm", "moe", "moe_act"
  bool distribute = false;  // --distribute-saved-activations: each tensor rank keeps a slice
  const parallel::TensorParallel* tensor = nullptr;  // ranks for `distribute`; borrowed
};

// The first `layers` layers of a chunk keep their activations for backward in host memory. They are
// prefetched one layer ahead. Not combined with recompute.
struct OffloadOptions {
  int64_t layers = 0;
};

// Runs every layer of a chunk as a span of the tape. in: what the previous virtual stage passes on
// (entering()); empty for the first. batch must outlive the tape. Recompute and offload do not
// change any bit, and have no effect if the tape does not record.
Bundle forward(const Stage& stage, Tape& tape, const Bundle& in, const nn::Batch& batch,
               Phase phase, const RecomputeOptions& recompute = {},
               const OffloadOptions& offload = {});

// The same forward pass in parts, each of which ends between two segments of a layer, where
// backward can stop as well (Tape::stop). All arguments are borrowed. Not combined with offload or
// recompute of whole layers.
class ForwardInParts {
 public:
  ForwardInParts(const Stage& stage, Tape& tape, const Bundle& in, const nn::Batch& batch,
                 Phase phase, const RecomputeOptions& recompute);
  // Runs to the next such point, or to the end of the last layer; does nothing once that has been
  // reached.
  void advance();
  // Calls advance() until the end.
  Bundle finish();

 private:
  const Stage& stage_;
  Tape& tape_;
  const nn::Batch& batch_;
  Phase phase_;
  std::vector<std::string> recompute_;
  Flow flow_;
  size_t layer_ = 0, segment_ = 0;  // next layer and segment
};

// hidden + residual, the value passed on to the next virtual stage: [T,H] (with sequence
// parallelism [T/n,H]).
Var flowing(Tape& tape, const Bundle& bundle);

}  // namespace megatron::models
