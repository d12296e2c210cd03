#include "models/decoder/layer.h"

#include <algorithm>
#include <cmath>

#include "models/decoder/feed_forwards/all.h"
#include "models/decoder/mixers/all.h"
#include "ops/elementwise.h"
#include "ops/scale.h"

namespace megatron::models {

void Sublayer::run_part(int, Tape& tape, Parted& parted, const nn::Batch& batch, bool train) const {
  parted.y_TH = (*this)(tape, parted.x_TH, batch, train);
}

parallel::Init matrix_init(const DecoderValue& model) {
  if (model.xavier_init) return nn::xavier_uniform();
  return nn::normal(model.init_method_std / std::sqrt(model.width_multiplier));
}

parallel::Init embedding_init(const DecoderValue& model) {
  if (model.embedding_init_std) return nn::normal(*model.embedding_init_std);
  return model.xavier_init ? nn::xavier_uniform() : nn::normal(model.init_method_std);
}

parallel::Init output_init(const DecoderValue& model) {
  if (model.xavier_init) return nn::xavier_uniform();
  const auto has_two_blocks = [](const LayerValue& layer) {
    return !std::holds_alternative<NoOp>(layer.mixer) &&
           !std::holds_alternative<NoOp>(layer.feed_forward);
  };
  const double blocks = std::ranges::any_of(model.layers, has_two_blocks) ? 2 : 1,
               layers = static_cast<double>(model.num_layers() - model.encoder_layers);
  return nn::normal(model.init_method_std / std::sqrt(blocks * layers * model.width_multiplier));
}

void PositionTables::add(const RotaryUse& use, const DecoderValue& model, Runtime& runtime,
                         DType type) {
  nn::RotaryConfig rotary = model.rotary.at(use.name);
  rotary.attention_factor = rotary.amplitude(model.max_position_embeddings);
  rotary_.try_emplace({use.name, use.head_size}, runtime, type, model.positions(), use.head_size,
                      rotary);
}

void PositionTables::add(const nn::AttentionConfig& a, const DecoderValue& model, Runtime& runtime,
                         DType type) {
  const TemperatureKey key{a.temperature.scale, a.temperature.step, a.head_size};
  if (a.temperature.scale != 0 && !temperatures_.contains(key))
    temperatures_[key] =
        nn::temperature_table(runtime, type, model.positions(), a.head_size, a.temperature);
}

const nn::RotaryTables* PositionTables::rotary(const std::optional<RotaryUse>& use) const {
  return use ? &rotary_.at({use->name, use->head_size}) : nullptr;
}

const nn::RotaryTable* PositionTables::temperature(const nn::AttentionConfig& a) const {
  if (a.temperature.scale == 0) return nullptr;
  return &temperatures_.at({a.temperature.scale, a.temperature.step, a.head_size});
}

namespace {

Bundle with_hidden(Bundle in, Var hidden, Var residual) {
  in.set("hidden", std::move(hidden));
  in.set("residual", std::move(residual));
  return in;
}

}  // namespace

Var residual_of(const Bundle& in) { return in.contains("residual") ? in["residual"] : Var(); }

void DecoderLayer::build_norms(nn::Builder& builder, const std::string& name,
                               const LayerPlace& place, bool norm, Branch& branch) {
  const LayerValue& layer = place.model.layer(place.index);
  const int64_t hidden = place.model.hidden_size;
  const auto add = [&](const std::string& suffix) {
    return std::make_unique<nn::AddNorm>(builder, name + suffix, hidden, layer.norm);
  };
  if (norm && layer.norm_before) branch.norm = add("_norm");
  if (layer.norm_after) branch.post_norm = add("_post_norm");
  if (layer.norm_of_sum) branch.sum_norm = add("_norm");
  branch.dropout = std::make_unique<nn::Dropout>(builder, name + ".hidden_dropout",
                                                 place.model.hidden_dropout, place.seed);
}

template <class Value>
DecoderLayer::Branch DecoderLayer::build_branch(nn::Builder& builder, const std::string& name,
                                                const Value& value, const LayerPlace& place,
                                                bool norm) const {
  Branch branch;
  if (std::holds_alternative<NoOp>(value)) return branch;
  build_norms(builder, name, place, norm, branch);
  branch.sublayer = visit_part(value, [&](auto kind, const auto& config) {
    return decltype(kind)::build(builder, name, config, place);
  });
  return branch;
}

void DecoderLayer::build_cross(nn::Builder& builder, const std::string& name,
                               const LayerPlace& place) {
  const DecoderValue& model = place.model;
  const LayerValue& layer = model.layer(place.index);
  if (!layer.cross) return;
  build_norms(builder, name, place, true, cross_);
  cross_.cross =
      std::make_unique<nn::CrossAttention>(builder, name, *layer.cross,
                                           nn::AttentionPlace{.hidden = model.hidden_size,
                                                              .dropout = model.attention_dropout,
                                                              .seed = place.seed,
                                                              .layer = place.state_layer,
                                                              .index = place.index,
                                                              .init = matrix_init(model),
                                                              .output_init = output_init(model)});
}

DecoderLayer::DecoderLayer(nn::Builder& builder, const LayerPlace& place) {
  const LayerValue& layer = place.model.layer(place.index);
  const std::string name = "layers." + std::to_string(place.index);
  order_ = layer.order;
  residual_multiplier_ = layer.residual_multiplier;
  mixer_ = build_branch(builder, name + ".attention", layer.mixer, place, layer.mixer_norm);
  const nn::AttentionConfig* a = layer.attention();
  if (a != nullptr && a->relative.buckets > 0 && !a->relative.shared)
    relative_ =
        std::make_unique<nn::RelativePositions>(builder, name + ".attention", a->relative,
                                                a->two_sided, a->heads, matrix_init(place.model));
  build_cross(builder, name + ".cross_attention", place);
  // The norm shared by both belongs to the mixer, if there is one.
  const bool own_norm =
      order_ != LayerValue::Order::parallel_one_norm || mixer_.sublayer == nullptr;
  feed_forward_ = build_branch(builder, name + ".mlp", layer.feed_forward, place, own_norm);
}

nn::LayerCache DecoderLayer::cache() const {
  nn::LayerCache cache = mixer_.sublayer == nullptr ? nn::LayerCache{} : mixer_.sublayer->cache();
  if (cross_.cross == nullptr) return cache;
  cache.cross_heads = cross_.cross->kv_heads();
  cache.cross_size = cross_.cross->head_size();
  return cache;
}

std::vector<Segment> DecoderLayer::segments() const {
  const bool one_after_another = order_ == LayerValue::Order::sequential ||
                                 mixer_.sublayer == nullptr || feed_forward_.sublayer == nullptr;
  const int parts =
      one_after_another && feed_forward_.sublayer != nullptr ? feed_forward_.sublayer->parts() : 1;
  if (parts == 1)
    return {[this](Tape& tape, Flow& flow, const nn::Batch& batch, Phase phase) {
      flow.bundle = forward(tape, flow.bundle, batch, phase);
    }};
  std::vector<Segment> segments;
  for (int part = 0; part < parts; ++part)
    segments.push_back([this, part](Tape& tape, Flow& flow, const nn::Batch& batch, Phase phase) {
      forward_part(part, tape, flow, batch, phase);
    });
  return segments;
}

// Part 0 runs the mixer and the first part of the feed-forward; later parts run its rest.
void DecoderLayer::forward_part(int part, Tape& tape, Flow& flow, const nn::Batch& batch,
                                Phase phase) const {
  const bool train = phase == Phase::train;
  struct Between {
    Sublayer::Parted feed_forward;
    Var sum;
  };
  if (part == 0) {
    flow.bundle = attended(tape, flow.bundle, batch, train);
    Entered in = enter(tape, feed_forward_, flow.bundle);
    for (const char* name : {"hidden", "residual"}) flow.bundle.set(name, Var());
    flow.in_flight = Between{.feed_forward = {.x_TH = std::move(in.x), .y_TH = {}, .in_flight = {}},
                             .sum = std::move(in.sum)};
  }
  auto& between = std::any_cast<Between&>(flow.in_flight);
  feed_forward_.sublayer->run_part(part, tape, between.feed_forward, batch, train);
  if (part + 1 < feed_forward_.sublayer->parts()) return;
  flow.bundle =
      passed_on(tape, feed_forward_, std::move(flow.bundle),
                leave(tape, feed_forward_, std::move(between.feed_forward.y_TH), batch, train),
                std::move(between.sum));
  flow.in_flight.reset();
}

Bundle DecoderLayer::forward(Tape& tape, const Bundle& in, const nn::Batch& batch,
                             Phase phase) const {
  const bool train = phase == Phase::train;
  if (order_ != LayerValue::Order::sequential && mixer_.sublayer != nullptr &&
      feed_forward_.sublayer != nullptr)
    return parallel(tape, in, batch, train);
  return sequential(tape, feed_forward_, attended(tape, in, batch, train), batch, train);
}

// After the mixer, and the attention to an encoder's output.
Bundle DecoderLayer::attended(Tape& tape, const Bundle& in, const nn::Batch& batch,
                              bool train) const {
  Bundle entering = in;
  if (relative_ != nullptr) entering.set(kDistanceBias, (*relative_)(tape));
  const Bundle mixed = sequential(tape, mixer_, entering, batch, train);
  if (cross_.cross == nullptr) return mixed;
  const Entered entered = enter(tape, cross_, mixed);
  const Var encoded = mixed.contains(kEncoded) ? mixed[kEncoded] : Var();
  Var y = (*cross_.cross)(tape, entered.x, encoded, batch, train);
  return passed_on(tape, cross_, mixed, leave(tape, cross_, std::move(y), batch, train),
                   entered.sum);
}

DecoderLayer::Entered DecoderLayer::enter(Tape& tape, const Branch& branch,
                                          const Bundle& in) const {
  if (branch.norm != nullptr) {
    auto [normed, residual] = (*branch.norm)(tape, in["hidden"], residual_of(in));
    return {std::move(normed), std::move(residual)};
  }
  const Var x = flowing(tape, in);
  return {x, x};
}

// Returns the value that is added to the residual stream.
Var DecoderLayer::leave(Tape& tape, const Branch& branch, Var y, const nn::Batch& batch,
                        bool train) const {
  if (branch.post_norm != nullptr) y = (*branch.post_norm)(tape, y, Var()).normed;
  return (*branch.dropout)(tape, ops::scale(tape, y, residual_multiplier_), batch, train);
}

Bundle DecoderLayer::passed_on(Tape& tape, const Branch& branch, Bundle in, Var y, Var sum) {
  if (branch.sum_norm != nullptr) {
    y = (*branch.sum_norm)(tape, y, sum).normed;
    sum = Var();
  }
  return with_hidden(std::move(in), std::move(y), std::move(sum));
}

Var DecoderLayer::result(Tape& tape, const Branch& branch, const Var& x, const Bundle& in,
                         const nn::Batch& batch, bool train) const {
  return leave(tape, branch, branch.sublayer->with(tape, x, in, batch, train), batch, train);
}

Bundle DecoderLayer::sequential(Tape& tape, const Branch& branch, const Bundle& in,
                                const nn::Batch& batch, bool train) const {
  if (branch.sublayer == nullptr) return in;
  const Entered entered = enter(tape, branch, in);
  return passed_on(tape, branch, in, result(tape, branch, entered.x, in, batch, train),
                   entered.sum);
}

Bundle DecoderLayer::parallel(Tape& tape, const Bundle& in, const nn::Batch& batch,
                              bool train) const {
  const auto [normed, sum] = (*mixer_.norm)(tape, in["hidden"], residual_of(in));
  Var of_feed_forward = normed, residual = sum;
  if (feed_forward_.norm != nullptr) {
    const auto both = (*feed_forward_.norm)(tape, sum, Var());
    of_feed_forward = both.normed;
    residual = both.residual;
  }
  const Var mixed = result(tape, mixer_, normed, in, batch, train);
  const Var fed = result(tape, feed_forward_, of_feed_forward, in, batch, train);
  return with_hidden(in, ops::add(tape, mixed, fed), residual);
}

}  // namespace megatron::models
