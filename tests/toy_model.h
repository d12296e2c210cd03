// A model for tests with features that no model family of the program has yet: layers with an fp32
// gain each and an auxiliary loss that depends on a running statistic, and counts of the tokens
// that the embedding has seen.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/stage.h"
#include "ops/auxiliary_loss.h"
#include "parallel/model_ranks.h"

namespace megatron::testing {

struct Toy {
  double coefficient = 0.5;  // weight of the auxiliary loss
  bool states = true;        // false: fp32 gains only
};

// Output of a layer as doubles.
inline std::vector<double> flowing_values(const Tensor& hidden, const Tensor& residual) {
  std::vector<double> values = to_doubles(hidden);
  if (!residual.defined()) return values;
  const std::vector<double> others = to_doubles(residual);
  for (size_t i = 0; i < values.size(); ++i) values[i] += others[i];
  return values;
}

inline void mean_square_dgrad(Backward& backward) {
  const Tensor &hidden = backward.saved(0), &residual = backward.saved(1);
  std::vector<double> dx = flowing_values(hidden, residual);
  const std::vector<double> scale = to_doubles(backward.saved(2));
  const std::vector<double> dlosses = to_doubles(backward.gradient(0));
  const size_t width = dx.size() / dlosses.size();
  for (size_t i = 0; i < dx.size(); ++i)
    dx[i] *= 2 * scale[i % width] * dlosses[i / width] / static_cast<double>(width);
  for (size_t input = 0; input < 2; ++input) {
    if (!backward.needs(input)) continue;
    Tensor gradient = backward.empty(hidden.shape(), hidden.dtype(), "mean_square.dx");
    copy_from(gradient, std::span<const double>(dx));
    backward.set(input, gradient);
  }
}

// losses[t] = mean_h scale[h] (hidden[t,h] + residual[t,h])^2: f32 (f64) [T]. On the host.
inline Var mean_square(Tape& tape, const Var& hidden, const Var& residual, const Tensor& scale) {
  const int64_t tokens = hidden.value.size(0);
  const std::vector<double> x = flowing_values(hidden.value, residual.value),
                            scales = to_doubles(scale);
  const size_t width = scales.size();
  std::vector<double> means(static_cast<size_t>(tokens));
  for (size_t i = 0; i < x.size(); ++i)
    means[i / width] += scales[i % width] * x[i] * x[i] / static_cast<double>(width);
  Tensor losses =
      tape.empty({tokens}, kernels::accumulator(hidden.value.dtype()), "mean_square.losses");
  copy_from(losses, std::span<const double>(means));
  return tape.record_one({.name = "mean_square",
                          .inputs = {hidden.id, residual.id},
                          .saved = {hidden.value, residual.value, scale},
                          .dgrad = mean_square_dgrad},
                         losses);
}

// out[t,h] = gain[h] x[t,h].
inline void multiply(const Tensor& x, const Tensor& gain, Tensor& out) {
  if (!x.device().has_data()) return;
  std::vector<double> values = to_doubles(x);
  const std::vector<double> gains = to_doubles(gain);
  for (size_t i = 0; i < values.size(); ++i) values[i] *= gains[i % gains.size()];
  copy_from(out, std::span<const double>(values));
}

inline void gain_dgrad(Backward& backward) {
  const Tensor& dout = backward.gradient(0);
  Tensor dx = backward.empty(dout.shape(), dout.dtype(), "gain.dx");
  multiply(dout, backward.weight(0).value(), dx);
  backward.set(0, dx);
}

inline void gain_wgrad(Backward& backward) {
  GradSlot slot = backward.grad_slot(0);
  if (!slot.out.defined() || !slot.out.device().has_data()) return;
  const std::vector<double> dout = to_doubles(backward.gradient(0)),
                            x = to_doubles(backward.saved(0));
  std::vector<double> sums(static_cast<size_t>(slot.out.elements()));
  if (slot.beta != 0) sums = to_doubles(slot.out);
  for (size_t i = 0; i < x.size(); ++i) sums[i % sums.size()] += dout[i] * x[i];
  copy_from(slot.out, std::span<const double>(sums));
}

// out[t,h] = gain[h] x[t,h], in the type of x. On the host.
inline Var gained(Tape& tape, const Var& x, const Weight& gain) {
  Tensor out = tape.empty(x.value.shape(), x.value.dtype(), "gain");
  multiply(x.value, gain.value(), out);
  return tape.record_one({.name = "gain",
                          .inputs = {x.id},
                          .saved = {x.value},
                          .weights = {gain},
                          .dgrad = gain_dgrad,
                          .wgrad = gain_wgrad},
                         out);
}

inline void add_to(Tensor sum, const std::vector<double>& values) {
  std::vector<double> all = to_doubles(sum);
  for (size_t i = 0; i < all.size(); ++i) all[i] += values[i];
  copy_from(sum, std::span<const double>(all));
}

// observed: the sum of squares of each channel, then the number of tokens.
inline void update_running(const nn::ModuleState& state, Stream& stream) {
  if (!state.value().device().has_data()) return;
  stream.synchronize();
  std::vector<double> running = to_doubles(state.value());
  const std::vector<double> seen = to_doubles(state.observed);
  for (size_t i = 0; i < running.size(); ++i)
    running[i] = 0.75 * running[i] + 0.25 * seen[i] / seen.back();
  Tensor value = state.value();
  copy_from(value, std::span<const double>(running));
}

// Counts of each token id over all steps.
inline void update_seen(const nn::ModuleState& state, Stream& stream) {
  if (!state.value().device().has_data()) return;
  stream.synchronize();
  add_to(state.value(), to_doubles(state.observed));
}

// States "toy.layers.N.running" [H], on every tensor-parallel rank, and "toy.seen" [V], divided.
class ToyStage final : public models::Stage {
 public:
  ToyStage(models::Model model, const Toy& toy, std::unique_ptr<Stage> inner, Runtime& runtime,
           DType type, const parallel::ModelRanks& ranks)
      : model_(std::move(model)), toy_(toy), inner_(std::move(inner)), tensor_(ranks.tensor) {
    const auto placement = [](const std::string& name, const Shape& shape) {
      parallel::Placement placement;
      placement.tensors = {{.name = "toy." + name, .global = shape}};
      return placement;
    };
    nn::Builder builder(runtime, type, placement, ranks);
    for (const models::Block& block : inner_->blocks()) {
      const std::string& name = blocks_.emplace_back(block).span.name;
      if (!name.starts_with("layers.")) {
        if (toy.states) count(blocks_.back(), add_seen(builder));
        continue;
      }
      add_gain(blocks_.back(), *builder
                                    .add(name + ".mlp.gain", {model_->hidden_size()}, nn::ones(),
                                         {.type = kernels::accumulator(type)})
                                    .parameter);
      if (toy.states) add_loss(blocks_.back(), add_running(builder, name));
    }
    owned_ = builder.take_states();
    states_.assign(inner_->states().begin(), inner_->states().end());
    for (const auto& state : owned_) states_.push_back(state.get());
    gains_ = builder.take();
    list_parameters();
  }

  std::span<nn::ModuleState* const> states() const override { return states_; }
  const models::Model& model() const override { return model_; }
  const parallel::ModelPart& part() const override { return inner_->part(); }
  std::span<const models::Block> blocks() const override { return blocks_; }
  Tensor loss(Tape& tape, const Bundle& in, const nn::Batch& batch) const override {
    return inner_->loss(tape, in, batch);
  }
  Var logits(Tape& tape, const Bundle& in, const nn::Batch& batch) const override {
    return inner_->logits(tape, in, batch);
  }
  Var objective_values(Tape& tape, const Bundle& in, const nn::Batch& batch) const override {
    return inner_->objective_values(tape, in, batch);
  }
  Tensor loss_logits(Tape& tape, const Bundle& in) const override {
    return inner_->loss_logits(tape, in);
  }
  Var final_norm(Tape& tape, const Bundle& in) const override {
    return inner_->final_norm(tape, in);
  }
  const Span& head() const override { return inner_->head(); }
  std::span<parallel::ParameterSpec* const> parameters() const override { return parameters_; }
  std::vector<nn::LayerCache> layer_caches() const override { return inner_->layer_caches(); }

 private:
  // In the model's order: a layer's gain comes after its other parameters.
  void list_parameters() {
    parameters_.assign(inner_->parameters().begin(), inner_->parameters().end());
    for (const auto& gain : gains_) {
      const std::string& name = gain->parameter.name;
      const std::string layer = name.substr(0, name.find(".mlp") + 1);
      const auto last = std::find_if(parameters_.rbegin(), parameters_.rend(),
                                     [&](const parallel::ParameterSpec* placed) {
                                       return placed->parameter.name.starts_with(layer);
                                     });
      parameters_.insert(last.base(), gain.get());
    }
  }

  nn::ModuleState& add_seen(nn::Builder& builder) const {
    const int64_t vocabulary = model_->vocab_size();
    return builder.add_state(
        "seen", {vocabulary}, nn::zeros(),
        {.update = update_seen, .divisions = {{.axis = 0, .blocks = {vocabulary}}}});
  }
  nn::ModuleState& add_running(nn::Builder& builder, const std::string& layer) const {
    const int64_t hidden = model_->hidden_size();
    return builder.add_state(layer + ".running", {hidden}, nn::ones(),
                             {.observed = Shape{hidden + 1}, .update = update_running});
  }

  static void add_gain(models::Block& block, Parameter& gain) {
    block.span.parameters.push_back(&gain);
    block.segments.push_back(
        [&gain](Tape& tape, models::Flow& flow, const nn::Batch&, models::Phase) {
          flow.bundle.set("hidden", gained(tape, flow.bundle["hidden"], gain));
        });
  }

  static bool has_data(const Tensor& tensor) {
    return tensor.defined() && tensor.device().has_data();
  }

  // Each rank sees all tokens, and counts those in its rows of the vocabulary.
  static void count(models::Block& block, const nn::ModuleState& state) {
    const auto count = [&state](Tape& tape, models::Flow&, const nn::Batch& batch, models::Phase) {
      if (const Tensor seen = state.observe(tape); has_data(seen)) {
        std::vector<double> counts(static_cast<size_t>(seen.elements()));
        const int64_t first = state.placed.placement.tensors[0].slices(0)[0].global_begin;
        for (const int32_t id : batch.tokens.span<int32_t>())
          if (id >= first && id < first + seen.elements())
            ++counts[static_cast<size_t>(id - first)];
        add_to(seen, counts);
      }
    };
    block.segments.insert(block.segments.begin(), count);
  }

  void add_loss(models::Block& block, const nn::ModuleState& running) const {
    const auto add = [tensor = tensor_, coefficient = toy_.coefficient, &running](
                         Tape& tape, models::Flow& flow, const nn::Batch& batch, models::Phase) {
      const Var &hidden = flow.bundle["hidden"], &residual = flow.bundle["residual"];
      const parallel::Slice own = tensor.tokens(batch.loss_weights.size(0));
      const Tensor weights = batch.loss_weights.slice(0, own.global_begin, own.size);
      const bool divided = tensor.divides_tokens();
      if (!hidden.value.device().has_data()) return;
      if (const Tensor seen = running.observe(tape); has_data(seen)) {
        std::vector<double> sums(static_cast<size_t>(seen.elements()));
        const std::vector<double> x = flowing_values(hidden.value, residual.value);
        const size_t width = sums.size() - 1;
        for (size_t i = 0; i < x.size(); ++i) sums[i % width] += x[i] * x[i];
        sums.back() = static_cast<double>(own.size);
        add_to(seen, sums);
      }
      ops::auxiliary_loss(tape, mean_square(tape, hidden, residual, running.value()), weights,
                          {.metric = "square", .coefficient = coefficient, .divided = divided});
      tape.report("tokens", {.values = weights, .divided = divided});
    };
    block.segments.push_back(add);
  }

  models::Model model_;
  Toy toy_;
  std::unique_ptr<Stage> inner_;
  parallel::TensorParallel tensor_;
  std::vector<models::Block> blocks_;
  std::vector<std::unique_ptr<nn::ModuleState>> owned_;
  std::vector<nn::ModuleState*> states_;
  std::vector<std::unique_ptr<parallel::ParameterSpec>> gains_;
  std::vector<parallel::ParameterSpec*> parameters_;
};

class ToyDefinition final : public models::ModelDefinition,
                            public std::enable_shared_from_this<ToyDefinition> {
 public:
  explicit ToyDefinition(models::Model inner, const Toy& toy = {})
      : ModelDefinition(facts_of(inner->facts())), inner_(std::move(inner)), toy_(toy) {}

  double training_flops(const models::TextLength& length) const override {
    return inner_->training_flops(length);
  }
  std::vector<MetricDefinition> metrics() const override {
    std::vector<MetricDefinition> all = inner_->metrics();
    if (toy_.states) all.insert(all.end(), {{"square"}, {"tokens", MetricDefinition::Kind::count}});
    return all;
  }
  Json describe() const override { return inner_->describe(); }
  Json config_json(DType stored) const override { return inner_->config_json(stored); }
  models::Model with(const models::ModelChanges& changes) const override {
    return models::Model(std::make_shared<ToyDefinition>(inner_->with(changes), toy_));
  }
  std::unique_ptr<models::Stage> build(Runtime& runtime, DType type, uint64_t seed,
                                       const parallel::ModelPart& part,
                                       const parallel::ModelRanks& ranks) const override {
    return std::make_unique<ToyStage>(models::Model(shared_from_this()), toy_,
                                      inner_.build(runtime, type, seed, part, ranks), runtime, type,
                                      ranks);
  }
  std::vector<double> plain_losses(const models::PlainTensors& weights,
                                   const models::PlainText& text,
                                   std::span<const int32_t> labels) const override {
    return inner_->plain_losses(weights, text, labels);
  }

 private:
  static models::ModelFacts facts_of(models::ModelFacts inner) {
    inner.parameters += inner.num_layers * inner.hidden_size;
    return inner;
  }

  models::Model inner_;
  Toy toy_;
};

inline std::function<models::Model(const models::Model&)> toy_model(const Toy& toy = {}) {
  return [toy](const models::Model& inner) {
    return models::Model(std::make_shared<ToyDefinition>(inner, toy));
  };
}

}  // namespace megatron::testing
