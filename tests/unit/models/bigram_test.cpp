// A model of another composition than models/gpt, known by the two interfaces alone; docs/adding.md
// quotes it. p(next | token) = softmax(output * norm(embedding of the token)): Bengio et al. 2003,
// with a context of one token.
#include <gtest/gtest.h>

#include <cmath>

#include "models/stage.h"
#include "nn/embedding.h"
#include "nn/norm.h"
#include "tiny_gpt.h"

namespace megatron::models {
namespace {

constexpr double kEpsilon = 1e-5;

class BigramModel final : public Stage {
 public:
  BigramModel(const Model& model, Runtime& runtime, DType type, const parallel::ModelRanks& ranks);

  const Model& model() const override { return model_; }
  const parallel::ModelPart& part() const override { return part_; }
  std::span<const Block> blocks() const override { return blocks_; }
  const Span& head() const override { return head_; }
  std::span<parallel::ParameterSpec* const> parameters() const override { return parameters_; }
  Var final_norm(Tape& tape, const Bundle& in) const override {
    return (*norm_)(tape, in["hidden"], in["residual"]).normed;
  }
  Tensor loss(Tape& tape, const Bundle& in, const nn::Batch& batch) const override;
  Var objective_values(Tape& tape, const Bundle& in, const nn::Batch& batch) const override;
  Var logits(Tape& tape, const Bundle& in, const nn::Batch&) const override {
    return output_->logits(tape, final_norm(tape, in), 0);
  }
  Tensor loss_logits(Tape& tape, const Bundle& in) const override {
    return output_->loss_logits(tape, final_norm(tape, in).value, 0);
  }
  std::vector<nn::LayerCache> layer_caches() const override {
    return {};
  }  // it looks back at nothing

 private:
  Model model_;
  parallel::ModelPart part_;
  std::unique_ptr<nn::VocabularyTable> embedding_, output_;
  std::unique_ptr<nn::AddNorm> norm_;
  std::vector<std::unique_ptr<parallel::ParameterSpec>> owned_;
  std::vector<parallel::ParameterSpec*> parameters_;
  std::vector<Block> blocks_;
  Span head_{.name = "head"};
};

BigramModel::BigramModel(const Model& model, Runtime& runtime, DType type,
                         const parallel::ModelRanks& ranks)
    : model_(model) {
  const int64_t vocabulary = model->vocab_size(), hidden = model->hidden_size();
  const auto placement = [](const std::string& name, const Shape& shape) {
    parallel::Placement placement;
    placement.tensors = {{.name = "model." + name, .global = shape}};
    return placement;
  };
  nn::Builder builder(runtime, type, placement, ranks);
  embedding_ = std::make_unique<nn::VocabularyTable>(builder, "embedding", vocabulary, hidden,
                                                     nn::normal(1), std::vector<int>{1});
  norm_ = std::make_unique<nn::AddNorm>(
      builder, "norm", hidden,
      nn::NormConfig{.kind = nn::Normalization::rms_norm, .epsilon = kEpsilon});
  output_ = std::make_unique<nn::VocabularyTable>(builder, "output", vocabulary, hidden,
                                                  nn::normal(1), std::vector<int>{1});
  owned_ = builder.take();
  for (const auto& placed : owned_) parameters_.push_back(placed.get());
  blocks_.push_back(
      {{.name = "embedding"}, {[this](Tape& tape, Flow& flow, const nn::Batch& batch, Phase) {
         flow.bundle = {{"hidden", embedding_->look_up(tape, batch.tokens, 0)},
                        {"residual", Var()}};
       }}});
}

Tensor BigramModel::loss(Tape& tape, const Bundle& in, const nn::Batch& batch) const {
  return output_->loss(tape, final_norm(tape, in), batch.labels, batch.loss_weights, 0);
}

Var BigramModel::objective_values(Tape& tape, const Bundle& in, const nn::Batch& batch) const {
  return output_->log_probabilities(tape, final_norm(tape, in), batch.labelled, 0);
}

struct BigramDefinition final : ModelDefinition, std::enable_shared_from_this<BigramDefinition> {
  BigramDefinition(int64_t vocabulary, int64_t hidden)
      : ModelDefinition({.family = "bigram",
                         .hidden_size = hidden,
                         .vocab_size = vocabulary,
                         .max_position_embeddings = 1,
                         .context_length = 1,
                         .parameters = 2 * vocabulary * hidden + hidden,
                         .tied = false}),
        vocabulary(vocabulary),
        hidden(hidden) {}

  double training_flops(const TextLength& length) const override {
    return 6.0 * static_cast<double>(length.tokens * vocabulary * hidden);
  }
  Json describe() const override { return config_json(DType::f32); }
  Json config_json(DType) const override {
    Json j(Json::Object{});
    j.set("model_type", "bigram");
    j.set("vocab_size", vocabulary);
    j.set("hidden_size", hidden);
    return j;
  }
  Model with(const ModelChanges&) const override { return Model(shared_from_this()); }
  std::unique_ptr<Stage> build(Runtime& runtime, DType type, uint64_t, const parallel::ModelPart&,
                               const parallel::ModelRanks& ranks) const override {
    return std::make_unique<BigramModel>(Model(shared_from_this()), runtime, type, ranks);
  }
  std::vector<double> plain_losses(const PlainTensors& weights, const PlainText& text,
                                   std::span<const int32_t> labels) const override;

  const int64_t vocabulary, hidden;
};

std::vector<double> BigramDefinition::plain_losses(const PlainTensors& weights,
                                                   const PlainText& text,
                                                   std::span<const int32_t> labels) const {
  const std::span<const int32_t> tokens = text.tokens;
  const auto row = [&](const char* name, int64_t r) {
    return weights.at(name).data() + r * hidden;
  };
  std::vector<double> losses;
  for (size_t t = 0; t < tokens.size(); ++t) {
    const double* x = row("model.embedding.weight", tokens[t]);
    double squares = 0, sum = 0, label = 0;
    for (int64_t i = 0; i < hidden; ++i) squares += x[i] * x[i];
    const double scale = 1 / std::sqrt(squares / static_cast<double>(hidden) + kEpsilon);
    for (int64_t v = 0; v < vocabulary; ++v) {
      double logit = 0;
      for (int64_t i = 0; i < hidden; ++i)
        logit += row("model.output.weight", v)[i] * x[i] * scale * row("model.norm.weight", 0)[i];
      sum += std::exp(logit);
      if (v == labels[t]) label = logit;
    }
    losses.push_back(std::log(sum) - label);
  }
  return losses;
}

class Bigram : public ::testing::Test {
 protected:
  static constexpr int64_t kTokens = 16;  // of testing::tiny_batch

  Bigram() {
    testing::TinyConfig sizes = testing::tiny_gpt2();
    model = Model(std::make_shared<const BigramDefinition>(sizes.vocab_size, 12));
    stage = model.build(runtime, DType::f64, 1);
    testing::fill_with_noise(stage->parameters());
    testing::give_gradients(stage->parameters(), runtime);
    batch = testing::tiny_batch(runtime, sizes, DType::f64);
  }
  std::vector<double> plain() const {
    PlainTensors weights;
    for (const parallel::ParameterSpec* placed : stage->parameters())
      weights["model." + placed->parameter.name] = to_doubles(placed->parameter.value);
    return model->plain_losses(weights, {{batch.tokens.data<int32_t>(), kTokens}},
                               {batch.labels.data<int32_t>(), kTokens});
  }
  double objective() const {
    const std::vector<double> losses = plain(), each = to_doubles(batch.loss_weights);
    double sum = 0;
    for (size_t t = 0; t < losses.size(); ++t) sum += each[t] * losses[t];
    return sum;
  }

  Runtime runtime{{DeviceKind::reference, 0}, 1};
  Model model;
  std::unique_ptr<Stage> stage;
  nn::Batch batch;
};

TEST_F(Bigram, LossesAreThoseOfItsOracle) {
  Tape tape(runtime);
  const Tensor losses =
      head_loss(*stage, tape, forward(*stage, tape, {}, batch, Phase::train), batch);
  const std::vector<double> plain_losses = plain();
  for (size_t t = 0; t < plain_losses.size(); ++t) {
    if (to_doubles(batch.loss_weights)[t] == 0) continue;
    EXPECT_NEAR(to_doubles(losses)[t], plain_losses[t], 1e-12) << t;
  }
}

TEST_F(Bigram, GradientsAreDifferencesOfItsOracle) {
  Tape tape(runtime);
  head_loss(*stage, tape, forward(*stage, tape, {}, batch, Phase::train), batch);
  tape.backward();
  constexpr double kStep = 1e-5;  // central differences: errors of about kStep^2 and 1e-16 / kStep
  for (parallel::ParameterSpec* placed : stage->parameters()) {
    double* value = placed->parameter.value.data<double>();
    const std::vector<double> gradient = testing::gradient_of(placed->parameter);
    for (size_t i = 0; i < gradient.size(); i += 7) {
      const double before = value[i];
      value[i] = before + kStep;
      const double above = objective();
      value[i] = before - kStep;
      const double below = objective();
      value[i] = before;
      EXPECT_NEAR(gradient[i], (above - below) / (2 * kStep), 1e-7)
          << placed->parameter.name << " " << i;
    }
  }
}

TEST_F(Bigram, ParametersAreAsManyAsItSays) {
  int64_t count = 0;
  for (const parallel::ParameterSpec* placed : stage->parameters())
    count += placed->parameter.value.elements();
  EXPECT_EQ(count, model->parameter_count());
}

}  // namespace
}  // namespace megatron::models
