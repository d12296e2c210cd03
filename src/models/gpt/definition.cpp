#include "models/gpt/definition.h"

#include "models/gpt/families.h"
#include "models/gpt/model.h"
#include "models/gpt/plain.h"

namespace megatron::models {
namespace {

class GptDefinition final : public ModelDefinition {
 public:
  explicit GptDefinition(GptConfig config) : c_(config) {}

  std::string_view family() const override { return family_of(c_).name; }
  int64_t num_layers() const override { return c_.num_layers; }
  int64_t hidden_size() const override { return c_.hidden_size; }
  int64_t vocab_size() const override { return c_.vocab_size; }
  int64_t max_position_embeddings() const override { return c_.max_position_embeddings; }
  int64_t parameter_count() const override;
  double training_flops(int64_t length) const override;
  ModelFlags flags() const override { return flags_of(c_); }
  Json describe() const override { return models::describe(c_); }
  Json config_json(DType stored) const override { return write_config(c_, stored); }
  Model with(const ModelChanges& changes) const override;
  std::unique_ptr<Stage> build(Runtime& runtime, DType type, uint64_t seed,
                               const parallel::ModelPart& part,
                               const parallel::ModelRanks& ranks) const override {
    return std::make_unique<GptModel>(c_, runtime, type, seed, part, ranks);
  }
  std::vector<double> plain_losses(const PlainTensors& weights, std::span<const int32_t> tokens,
                                   std::span<const int32_t> labels) const override {
    return models::plain_losses(c_, weights, tokens, labels);
  }

 private:
  const GptConfig c_;
};

int64_t GptDefinition::parameter_count() const {
  const int64_t h = c_.hidden_size, q = c_.num_attention_heads * c_.kv_channels,
                k = c_.num_query_groups * c_.kv_channels, f = c_.ffn_hidden_size,
                up = c_.gated ? 2 * f : f;
  const int64_t norm = c_.normalization == nn::Normalization::layer_norm ? 2 * h : h;
  const int64_t layer = 2 * norm + h * (q + 2 * k) + (c_.qkv_bias ? q + 2 * k : 0) + q * h +
                        (c_.attention_output_bias ? h : 0) + h * up + f * h +
                        (c_.mlp_bias ? up + h : 0);
  const int64_t positions = c_.position_embedding == PositionEmbedding::learned_absolute
                                ? c_.max_position_embeddings * h
                                : 0;
  return c_.num_layers * layer + norm + positions + c_.vocab_size * h * (c_.untied ? 2 : 1);
}

double GptDefinition::training_flops(int64_t length) const {
  const auto d = [](int64_t v) { return static_cast<double>(v); };
  const double t = d(length), h = d(c_.hidden_size), q = d(c_.num_attention_heads * c_.kv_channels),
               k = d(c_.num_query_groups * c_.kv_channels), f = d(c_.ffn_hidden_size);
  const double projections = 2 * t * h * (q + 2 * k) + 2 * t * q * h;
  const double attention = 2 * (2 * t * t * q) / 2;  // scores and values, half of each
  const double mlp = 2 * t * h * f * (c_.gated ? 3 : 2);
  const double head = 2 * t * h * d(c_.vocab_size);
  return 3 * (d(c_.num_layers) * (projections + attention + mlp) + head);
}

Model GptDefinition::with(const ModelChanges& changes) const {
  GptConfig other = c_;
  other.num_layers = changes.num_layers.value_or(c_.num_layers);
  other.hidden_dropout = changes.hidden_dropout.value_or(c_.hidden_dropout);
  other.attention_dropout = changes.attention_dropout.value_or(c_.attention_dropout);
  return gpt_model(other);
}

}  // namespace

Model gpt_model(GptConfig config) {
  config.finalize();
  return Model(std::make_shared<GptDefinition>(config));
}

Model gpt2_from_config_json(const Json& config) { return gpt_model(read_config(kGpt2, config)); }
Model llama_from_config_json(const Json& config) { return gpt_model(read_config(kLlama, config)); }

Model gpt_from_flags(const ModelFlags& flags, int64_t seq_length) {
  return gpt_model(config_of(flags, seq_length));
}

}  // namespace megatron::models
