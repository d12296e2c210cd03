#include "models/stage.h"

#include <algorithm>
#include <utility>

#include "autograd/offload.h"
#include "autograd/other_batch_rows.h"
#include "base/error.h"
#include "ops/elementwise.h"
#include "parallel/saved_activations.h"

namespace megatron::models {
namespace {

using Granularity = RecomputeOptions::Granularity;
using Method = RecomputeOptions::Method;

void mark_rows(const Stage& stage, Tape& tape, const nn::Batch& batch, Phase phase) {
  const LowPrecisionLayers* const low = stage.model()->low_precision();
  const bool rounds_by_chance = low != nullptr && low->may_use(LowPrecisionRecipe::nvfp4);
  if (phase == Phase::train && (stage.model()->adapter() != nullptr || rounds_by_chance))
    tape.set_batch_rows(batch.all_rows());
}

// Runs a segment with the batch that its block reads.
void run_segment(const Block& block, size_t index, Tape& tape, Flow& flow, const nn::Batch& batch,
                 Phase phase) {
  const Segment& segment = block.segments[index];
  if (!block.of_encoder) return segment(tape, flow, batch, phase);
  if (!reads_encoder(batch)) return;
  const OtherBatchRows rows(tape, batch.encoder->all_rows());
  segment(tape, flow, *batch.encoder, phase);
}

Bundle run(const Block& block, Tape& tape, const Bundle& in, const nn::Batch& batch, Phase phase) {
  Flow flow{.bundle = in, .in_flight = {}};
  for (size_t i = 0; i < block.segments.size(); ++i)
    run_segment(block, i, tape, flow, batch, phase);
  return std::move(flow.bundle);
}

// One forward pass over the layers of a chunk.
class Forward {
 public:
  Forward(std::span<const Block> layers, Tape& tape, const nn::Batch& batch, Phase phase)
      : layers_(layers), tape_(tape), batch_(batch), phase_(phase) {}

  Bundle one(size_t i, const Bundle& in) { return layers_[i](tape_, in, batch_, phase_); }

  // Runs a block with recompute, keeping only its input.
  Bundle recomputed(size_t i, const Bundle& in) {
    Span span = layers_[i].span;
    span.recompute = true;
    return tape_.span(span, flowing_alone(in),
                      [&layer = layers_[i], &batch = batch_, phase = phase_](
                          Tape& t, const Bundle& b) { return run(layer, t, b, batch, phase); });
  }
  // Recomputes layers [first, last) together, keeping only the input of the first.
  Bundle recomputed(size_t first, size_t last, const Bundle& in) {
    if (last == first + 1) return recomputed(first, in);
    const auto stretch = layers_.subspan(first, last - first);
    return tape_.recompute(flowing_alone(in), [stretch, &batch = batch_, phase = phase_](
                                                  Tape& tape, const Bundle& from) {
      Bundle bundle = from;
      for (const Block& layer : stretch) bundle = layer(tape, bundle, batch, phase);
      return bundle;
    });
  }

 private:
  // One tensor in place of two. What depths of prediction pass on is kept as it is.
  Bundle flowing_alone(const Bundle& in) {
    if (!in.contains(kHidden)) return in;
    Bundle alone = in;
    alone.set(kHidden, flowing(tape_, in));
    alone.set("residual", Var());
    return alone;
  }

  std::span<const Block> layers_;
  Tape& tape_;
  const nn::Batch& batch_;
  Phase phase_;
};

Bundle forward_full(Forward& pass, size_t begin, size_t end, Bundle bundle,
                    const RecomputeOptions& options) {
  const auto layers = static_cast<size_t>(options.layers);
  for (size_t i = begin; i < end;) {
    if (options.method == Method::uniform) {
      const size_t last = std::min(i + layers, end);
      bundle = pass.recomputed(i, last, bundle);
      i = last;
    } else {
      bundle = i - begin < layers ? pass.recomputed(i, bundle) : pass.one(i, bundle);
      ++i;
    }
  }
  return bundle;
}

Bundle forward_kept(Forward& pass, Tape& tape, size_t begin, size_t end, Bundle bundle,
                    const OffloadOptions& options) {
  Offloaded before;
  for (size_t i = begin; i < end; ++i) {
    const size_t first = tape.nodes();
    bundle = pass.one(i, bundle);
    before.bring_back_here(tape);  // backward is about to reach layer i: fetch layer i - 1
    before = {};
    if (i - begin < static_cast<size_t>(options.layers)) before = Offloaded::move(tape, first);
  }
  return bundle;
}

// The blocks that a pass runs.
std::span<const Block> blocks_of(const Stage& stage, Phase phase) {
  const std::span<const Block> all = stage.blocks();
  if (phase != Phase::evaluate) return all;
  const auto predicting = std::ranges::count_if(all, &Block::predicts);
  return all.first(all.size() - static_cast<size_t>(predicting));
}

// The first layer takes no residual from the previous virtual stage.
Bundle without_residual(Bundle in) {
  if (in.contains(kHidden) && !in.contains("residual")) in.set("residual", Var());
  return in;
}

}  // namespace

bool reads_encoder(const nn::Batch& batch) {
  MG_ASSERT(batch.encoder != nullptr || batch.continuation.state != nullptr);
  return batch.encoder != nullptr;
}

Bundle Block::operator()(Tape& tape, const Bundle& in, const nn::Batch& batch, Phase phase) const {
  return tape.span(span, in, [this, &batch, phase](Tape& t, const Bundle& b) {
    return run(*this, t, b, batch, phase);
  });
}

Var flowing(Tape& tape, const Bundle& bundle) {
  const Var& hidden = bundle["hidden"];
  if (!bundle.contains("residual") || !bundle["residual"].value.defined()) return hidden;
  return ops::add(tape, hidden, bundle["residual"]);
}

Bundle forward(const Stage& stage, Tape& tape, const Bundle& in, const nn::Batch& batch,
               Phase phase, const RecomputeOptions& recompute, const OffloadOptions& offload) {
  MG_ASSERT(recompute.layers > 0 && offload.layers >= 0);
  MG_ASSERT(offload.layers == 0 || recompute.granularity == Granularity::none);
  const auto layers = blocks_of(stage, phase);
  mark_rows(stage, tape, batch, phase);
  Forward pass(layers, tape, batch, phase);
  Bundle bundle = without_residual(in);
  // The embedding's input is the batch, which is kept anyway.
  const size_t begin = stage.part().embedding ? 1 : 0, end = layers.size();
  if (begin == 1) bundle = pass.one(0, bundle);
  if (!tape.recording() || recompute.granularity == Granularity::none)
    return forward_kept(pass, tape, begin, end, std::move(bundle),
                        tape.recording() ? offload : OffloadOptions{});
  if (recompute.granularity == Granularity::selective) {
    tape.recompute_modules(recompute.modules);
    bundle = forward_kept(pass, tape, begin, end, std::move(bundle), {});
    tape.recompute_modules({});
    return bundle;
  }
  if (recompute.distribute && recompute.tensor != nullptr && recompute.tensor->size() > 1) {
    tape.keep_inputs([tp = *recompute.tensor](Tape& t, const Tensor& input) {
      return parallel::keep_slice(t, input, tp);
    });
  }
  bundle = forward_full(pass, begin, end, std::move(bundle), recompute);
  tape.keep_inputs({});
  return bundle;
}

ForwardInParts::ForwardInParts(const Stage& stage, Tape& tape, const Bundle& in,
                               const nn::Batch& batch, Phase phase,
                               const RecomputeOptions& recompute)
    : stage_(stage),
      tape_(tape),
      batch_(batch),
      phase_(phase),
      flow_{.bundle = without_residual(in), .in_flight = {}} {
  MG_ASSERT(recompute.granularity != Granularity::full);
  mark_rows(stage, tape, batch, phase);
  if (recompute.granularity == Granularity::selective) recompute_ = recompute.modules;
}

void ForwardInParts::advance() {
  const auto layers = blocks_of(stage_, phase_);
  tape_.recompute_modules(recompute_);
  while (layer_ < layers.size()) {
    const Block& layer = layers[layer_];
    if (segment_ == 0) tape_.begin_span(layer.span);
    run_segment(layer, segment_, tape_, flow_, batch_, phase_);
    if (++segment_ < layer.segments.size()) {
      tape_.stop();
      break;
    }
    tape_.end_span(layer.span);
    segment_ = 0;
    ++layer_;
  }
  tape_.recompute_modules({});
}

Bundle ForwardInParts::finish() {
  while (layer_ < blocks_of(stage_, phase_).size()) advance();
  return std::move(flow_.bundle);
}

namespace {

void find_entropies(const Stage& stage, const Tape& tape, const Bundle& in, const nn::Batch& batch,
                    Tensor* entropies) {
  if (entropies == nullptr) return;
  Tape unrecorded(tape.runtime(), Tape::Mode::infer, &tape.kernels());
  if (!tape.adapts()) unrecorded.leave_out_adapters();
  *entropies = stage.entropies(unrecorded, in, batch);
}

}  // namespace

Tensor head_loss(const Stage& stage, Tape& tape, const Bundle& in, const nn::Batch& batch,
                 Tensor* entropies) {
  Tensor loss;
  tape.span(stage.head(), in, [&](Tape& t, const Bundle& b) {
    find_entropies(stage, t, b, batch, entropies);
    loss = stage.loss(t, b, batch);
    return Bundle();
  });
  return loss;
}

std::vector<PredictionLosses> head_prediction_losses(const Stage& stage, Tape& tape,
                                                     const Bundle& in, const nn::Batch& batch) {
  std::vector<PredictionLosses> losses;
  tape.span(stage.head(), in, [&](Tape& t, const Bundle& b) {
    losses = stage.prediction_losses(t, b, batch);
    return Bundle();
  });
  return losses;
}

Var head_objective_values(const Stage& stage, Tape& tape, const Bundle& in, const nn::Batch& batch,
                          Tensor* entropies) {
  const Bundle out = tape.span(stage.head(), in, [&](Tape& t, const Bundle& b) {
    find_entropies(stage, t, b, batch, entropies);
    return Bundle{{"values", stage.objective_values(t, b, batch)}};
  });
  return out["values"];
}

std::span<const BoundaryTensor> Stage::boundary(Edge edge) const {
  static constexpr BoundaryTensor kAll[] = {{.name = kHidden}};
  const bool at_end = edge == Edge::entry ? part().embedding : part().head;
  return at_end ? std::span<const BoundaryTensor>() : kAll;
}

void initialize(const Stage& stage, uint64_t seed, Stream& stream) {
  for (parallel::ParameterSpec* placed : tensors_of(stage))
    parallel::initialize(*placed, seed, stream);
}

HighPrecision::HighPrecision(std::span<const Stage* const> stages) {
  for (const Stage* stage : stages)
    for (parallel::ParameterSpec* placed : stage->parameters())
      if (auto& low = placed->parameter.low_precision; low && std::exchange(low->active, false))
        changed_.push_back(&*low);
}

HighPrecision::~HighPrecision() {
  for (LowPrecision* low : changed_) low->active = true;
}

std::vector<parallel::ParameterSpec*> tensors_of(const Stage& stage) {
  std::vector<parallel::ParameterSpec*> tensors(stage.parameters().begin(),
                                                stage.parameters().end());
  for (nn::ModuleState* state : stage.states())
    if (!state->of_training) tensors.push_back(&state->placed);
  return tensors;
}

}  // namespace megatron::models
