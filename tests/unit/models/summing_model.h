// A decoder with the made-up mixer of docs/adding.md after each of its layers: a model whose state
// is in pages and in slots.
#pragma once

#include "models/decoder/definition.h"
#include "models/decoder/flags.h"
#include "models/decoder/mixers/decaying_sum.h"
#include "models/model_flags.h"
#include "models/stage.h"

namespace megatron::testing {

class SummingStage final : public models::Stage {
 public:
  SummingStage(models::Model model, const models::DecoderValue& value,
               std::unique_ptr<models::Stage> inner, Runtime& runtime, DType type,
               const parallel::ModelRanks& ranks)
      : model_(std::move(model)), inner_(std::move(inner)), caches_(inner_->layer_caches()) {
    const auto placement = [](const std::string& name, const Shape& shape) {
      parallel::Placement placement;
      placement.tensors = {{.name = "model." + name, .global = shape}};
      return placement;
    };
    nn::Builder builder(runtime, type, placement, ranks);
    for (const models::Block& block : inner_->blocks()) {
      blocks_.push_back(block);
      if (block.span.name.starts_with("layers.")) add_sum(builder, value, block.span.name);
    }
    owned_ = builder.take();
    parameters_.assign(inner_->parameters().begin(), inner_->parameters().end());
    for (const auto& placed : owned_) parameters_.push_back(placed.get());
  }
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
  std::vector<nn::LayerCache> layer_caches() const override { return caches_; }

 private:
  void add_sum(nn::Builder& builder, const models::DecoderValue& value, const std::string& layer) {
    using Mixer = models::LayerPart<nn::DecayingSumConfig>;
    const auto& sum =
        sums_.emplace_back(Mixer::build(builder, layer + ".added", {.decay = 0.75},
                                        {.model = value,
                                         .positions = positions_,
                                         .state_layer = static_cast<int64_t>(caches_.size())}));
    caches_.push_back(sum->cache());
    blocks_.push_back({{.name = layer + ".added"},
                       {[&mixer = *sum](Tape& tape, models::Flow& flow, const nn::Batch& batch,
                                        models::Phase phase) {
                         const Var x = models::flowing(tape, flow.bundle);
                         const bool train = phase == models::Phase::train;
                         flow.bundle = {{"hidden", mixer(tape, x, batch, train)}, {"residual", x}};
                       }}});
  }

  models::Model model_;
  std::unique_ptr<models::Stage> inner_;
  std::vector<nn::LayerCache> caches_;
  models::PositionTables positions_;
  std::vector<std::unique_ptr<models::Sublayer>> sums_;
  std::vector<models::Block> blocks_;
  std::vector<std::unique_ptr<parallel::ParameterSpec>> owned_;
  std::vector<parallel::ParameterSpec*> parameters_;
};

class SummingDefinition final : public models::ModelDefinition,
                                public std::enable_shared_from_this<SummingDefinition> {
 public:
  explicit SummingDefinition(const models::DecoderValue& value)
      : ModelDefinition(models::decoder_model(value)->facts()),
        value_(value),
        inner_(models::decoder_model(value)) {}
  double training_flops(const models::TextLength& length) const override {
    return inner_->training_flops(length);
  }
  Json describe() const override { return inner_->describe(); }
  Json config_json(DType stored) const override { return inner_->config_json(stored); }
  models::Model with(const models::ModelChanges&) const override {
    return models::Model(shared_from_this());
  }
  std::unique_ptr<models::Stage> build(Runtime& runtime, DType type, uint64_t seed,
                                       const parallel::ModelPart& part,
                                       const parallel::ModelRanks& ranks) const override {
    return std::make_unique<SummingStage>(models::Model(shared_from_this()), value_,
                                          inner_->build(runtime, type, seed, part, ranks), runtime,
                                          type, ranks);
  }
  std::vector<double> plain_losses(const models::PlainTensors&, const models::PlainText&,
                                   std::span<const int32_t>) const override {
    return {};
  }

 private:
  models::DecoderValue value_;
  models::Model inner_;
};

// attention: false: the layers have no mixer, so that all state is in slots.
inline models::Model summing_model(models::ModelFlags flags, bool attention = true) {
  flags.init_method_std = 0.3;
  models::DecoderValue value = models::value_of(flags, 0);
  if (!attention)
    for (models::LayerValue& layer : value.layers) layer.mixer = models::NoOp{};
  return models::Model(std::make_shared<SummingDefinition>(value));
}

}  // namespace megatron::testing
