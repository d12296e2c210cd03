// T tokens, H hidden
#include "models/decoder/prediction.h"

#include <utility>

#include "ops/columns.h"

namespace megatron::models {
namespace {

std::string parameter_name(const LayerPlace& place, std::string_view name) {
  return "layers." + std::to_string(place.index) + "." + std::string(name);
}

// The layer's own flow, and the outputs of the trunk and of the depths before.
struct WithinDepth {
  Flow layer;
  Bundle outputs;
};

// The same value, through which no gradient passes.
Var detached(const Var& x) { return {x.value}; }

}  // namespace

PredictionDepth::PredictionDepth(nn::Builder& builder, const LayerPlace& place, int64_t depth,
                                 Trunk trunk)
    : depth_(depth),
      detached_(place.model.prediction.detached),
      trunk_(std::move(trunk)),
      embedding_norm_(builder, parameter_name(place, "embedding_norm"), place.model.hidden_size,
                      place.model.final_norm),
      hidden_norm_(builder, parameter_name(place, "hidden_norm"), place.model.hidden_size,
                   place.model.final_norm),
      projection_(builder, parameter_name(place, "projection"), 2 * place.model.hidden_size,
                  place.model.hidden_size, false, matrix_init(place.model)),
      dropout_(builder, parameter_name(place, "embedding.hidden_dropout"),
               place.model.hidden_dropout, place.seed),
      layer_(builder, place),
      final_norm_(builder, parameter_name(place, "final_norm"), place.model.hidden_size,
                  place.model.final_norm) {}

std::string PredictionDepth::output_name(int64_t depth) {
  return depth == 0 ? "trunk" : "depth " + std::to_string(depth);
}

void PredictionDepth::enter(Tape& tape, Flow& flow, const nn::Batch& batch, Phase phase) const {
  WithinDepth within;
  if (depth_ == 1 && !flow.bundle.contains(output_name(0))) {
    within.outputs.set(output_name(0), trunk_.final_norm(tape, flow.bundle));
  } else {
    within.outputs = std::move(flow.bundle);
  }
  Var before_TH = within.outputs[output_name(depth_ - 1)];
  Var embedded_TH =
      trunk_.embedding(tape, batch.predicted.at(static_cast<size_t>(depth_ - 1)).tokens);
  if (detached_) embedded_TH = detached(embedded_TH);
  if (detached_ && depth_ == 1) before_TH = detached(before_TH);
  embedded_TH = dropout_(tape, embedded_TH, batch, phase == Phase::train);
  const Var joined_T2H = ops::join_columns(tape, embedding_norm_(tape, embedded_TH, Var()).normed,
                                           hidden_norm_(tape, before_TH, Var()).normed);
  within.layer.bundle = {{"hidden", projection_(tape, joined_T2H)}, {"residual", Var()}};
  flow.bundle = {};
  flow.in_flight = std::move(within);
}

void PredictionDepth::leave(Tape& tape, Flow& flow) const {
  auto within = std::any_cast<WithinDepth>(std::move(flow.in_flight));
  const Bundle& out = within.layer.bundle;
  within.outputs.set(output_name(depth_),
                     final_norm_(tape, out["hidden"], residual_of(out)).normed);
  flow = {.bundle = std::move(within.outputs), .in_flight = {}};
}

std::vector<Segment> PredictionDepth::segments() const {
  std::vector<Segment> segments;
  const std::vector<Segment> of_layer = layer_.segments();
  for (size_t i = 0; i < of_layer.size(); ++i)
    segments.push_back([this, of = of_layer[i], first = i == 0, last = i + 1 == of_layer.size()](
                           Tape& tape, Flow& flow, const nn::Batch& batch, Phase phase) {
      if (first) enter(tape, flow, batch, phase);
      of(tape, std::any_cast<WithinDepth&>(flow.in_flight).layer, batch, phase);
      if (last) leave(tape, flow);
    });
  return segments;
}

}  // namespace megatron::models
