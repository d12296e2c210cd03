// T tokens, H hidden, V vocabulary
#include "models/gpt/model.h"

#include <cmath>
#include <unordered_map>

#include "base/error.h"
#include "models/gpt/definition.h"
#include "models/gpt/families.h"
#include "ops/elementwise.h"

namespace megatron::models {
namespace {

parallel::Init matrix_init(const GptConfig& c) {
  return c.xavier_init ? nn::xavier_uniform() : nn::normal(c.init_method_std);
}

parallel::Init embedding_init(const GptConfig& c) {
  return c.embedding_init_std ? nn::normal(*c.embedding_init_std) : matrix_init(c);
}

parallel::Init output_init(const GptConfig& c) {
  if (c.xavier_init) return nn::xavier_uniform();
  return nn::normal(c.init_method_std / std::sqrt(2.0 * static_cast<double>(c.num_layers)));
}

// What a parameter is to an optimizer.
void describe(parallel::ParameterSpec& placed, const GptConfig& c) {
  const std::string& name = placed.parameter.name;
  if (name == "embedding.weight") placed.role = parallel::Role::embedding;
  if (name == "output.weight") placed.role = parallel::Role::output;
  if (!name.ends_with("attention.qkv.weight")) return;
  const int64_t q = c.num_attention_heads * c.kv_channels, k = c.num_query_groups * c.kv_channels;
  placed.matrices = {q, k, k};
}

// "layers.3" of "layers.3.mlp.up.weight", "embedding" of "embedding.weight".
std::string span_of(const std::string& parameter) {
  const size_t dot = parameter.find('.');
  return parameter.substr(0, parameter.starts_with("layers.") ? parameter.find('.', dot + 1) : dot);
}

std::string layer_name(int64_t index) { return "layers." + std::to_string(index); }

// What flows into a part from the one before has no residual of its own.
Var residual_of(const Bundle& in) { return in.contains("residual") ? in["residual"] : Var(); }

}  // namespace

DecoderLayer::DecoderLayer(nn::Builder& builder, int64_t index, int64_t state_layer,
                           const GptConfig& c, const nn::RotaryTable* rotary, uint64_t seed)
    : DecoderLayer(builder, layer_name(index), state_layer, c, rotary, seed) {}

DecoderLayer::DecoderLayer(nn::Builder& builder, const std::string& name, int64_t state_layer,
                           const GptConfig& c, const nn::RotaryTable* rotary, uint64_t seed)
    : attention_norm_(builder, name + ".attention_norm", c.hidden_size, c.normalization,
                      c.norm_epsilon),
      attention_(builder, name + ".attention",
                 {.hidden = c.hidden_size,
                  .heads = c.num_attention_heads,
                  .kv_heads = c.num_query_groups,
                  .head_size = c.kv_channels,
                  .qkv_bias = c.qkv_bias,
                  .output_bias = c.attention_output_bias,
                  .dropout = c.attention_dropout,
                  .seed = seed,
                  .layer = state_layer},
                 rotary, matrix_init(c), output_init(c)),
      mlp_norm_(builder, name + ".mlp_norm", c.hidden_size, c.normalization, c.norm_epsilon),
      mlp_(builder, name + ".mlp",
           {.hidden = c.hidden_size,
            .ffn = c.ffn_hidden_size,
            .activation = c.activation,
            .gated = c.gated,
            .bias = c.mlp_bias},
           matrix_init(c), output_init(c)),
      attention_dropout_(builder, name + ".attention.hidden_dropout", c.hidden_dropout, seed),
      mlp_dropout_(builder, name + ".mlp.hidden_dropout", c.hidden_dropout, seed) {}

Bundle DecoderLayer::forward(Tape& tape, const Bundle& in, const nn::Batch& batch,
                             Phase phase) const {
  const bool train = phase == Phase::train;
  const auto [x_TH, residual_TH] = attention_norm_(tape, in["hidden"], residual_of(in));
  const Var a_TH = attention_dropout_(tape, attention_(tape, x_TH, batch, train), batch, train);
  const auto [y_TH, residual2_TH] = mlp_norm_(tape, a_TH, residual_TH);
  const Var m_TH = mlp_dropout_(tape, mlp_(tape, y_TH), batch, train);
  return {{"hidden", m_TH}, {"residual", residual2_TH}};
}

GptModel::GptModel(const GptConfig& config, Runtime& runtime, DType type, uint64_t seed,
                   const parallel::ModelPart& part, const parallel::ModelRanks& ranks)
    : model_(gpt_model(config)), config_(config), runtime_(runtime), part_(part) {
  MG_ASSERT(part.first_layer >= 0 && part.layers >= 0 &&
            part.first_layer + part.layers <= config.num_layers);
  const auto placement = [this](const std::string& name, const Shape& shape) {
    return placement_of(config_, name, shape);
  };
  nn::Builder builder(runtime, type, placement, ranks);
  if (part.embedding) build_embedding(builder, seed);
  if (part.layers > 0) build_layers(builder, type, seed);
  if (part.head) build_head(builder);
  list_parameters(builder);
  list_segments();
}

void GptModel::build_embedding(nn::Builder& builder, uint64_t seed) {
  const GptConfig& c = config_;
  const bool is_output = !c.untied && part_.head;
  embedding_ = std::make_unique<nn::VocabularyTable>(
      builder, "embedding", c.vocab_size, c.hidden_size, embedding_init(c), is_output ? 2 : 1);
  if (c.position_embedding == PositionEmbedding::learned_absolute) {
    position_embedding_ = std::make_unique<nn::PositionTable>(
        builder, "position_embedding", c.max_position_embeddings, c.hidden_size, embedding_init(c));
  }
  embedding_dropout_ =
      std::make_unique<nn::Dropout>(builder, "embedding.hidden_dropout", c.hidden_dropout, seed);
}

void GptModel::build_layers(nn::Builder& builder, DType type, uint64_t seed) {
  const GptConfig& c = config_;
  const bool rope = c.position_embedding == PositionEmbedding::rope;
  if (rope) {
    rotary_ = nn::RotaryTable::make(runtime_, type, c.max_position_embeddings, c.kv_channels,
                                    c.rotary_base);
  }
  for (int64_t i = 0; i < part_.layers; ++i) {
    layers_.push_back(std::make_unique<DecoderLayer>(builder, part_.first_layer + i, i, c,
                                                     rope ? &rotary_ : nullptr, seed));
  }
}

void GptModel::build_head(nn::Builder& builder) {
  const GptConfig& c = config_;
  final_norm_ = std::make_unique<nn::AddNorm>(builder, "final_norm", c.hidden_size, c.normalization,
                                              c.norm_epsilon);
  if (!c.untied && part_.embedding) {
    output_ = {.table = embedding_.get(), .use = 1};
    return;
  }
  // A tied table of which another part has the first use goes by its name.
  own_output_ = std::make_unique<nn::VocabularyTable>(
      builder, c.untied ? "output" : "embedding", c.vocab_size, c.hidden_size,
      c.untied ? matrix_init(c) : embedding_init(c), 1);
  output_ = {.table = own_output_.get(), .use = 0};
}

void GptModel::list_parameters(nn::Builder& builder) {
  owned_ = builder.take();
  for (const auto& placed : owned_) {
    describe(*placed, config_);
    if (placed->role == parallel::Role::embedding && !config_.untied) {
      placed->tied_across_stages = part_.embedding != part_.head;
      placed->counted = placed->counted && part_.embedding;
    }
    parameters_.push_back(placed.get());
  }
}

void GptModel::list_segments() {
  std::unordered_map<std::string, std::vector<Parameter*>> by_span;
  for (const auto& placed : owned_)
    by_span[span_of(placed->parameter.name)].push_back(&placed->parameter);
  const auto parameters_below = [&](std::initializer_list<std::string> spans) {
    std::vector<Parameter*> found;
    for (const std::string& span : spans)
      found.insert(found.end(), by_span[span].begin(), by_span[span].end());
    return found;
  };
  if (part_.embedding) {
    segments_.push_back(
        {{.name = "embedding", .parameters = parameters_below({"embedding", "position_embedding"})},
         [this](Tape& tape, const Bundle&, const nn::Batch& batch, Phase phase) {
           return embed(tape, batch, phase);
         }});
  }
  for (int64_t i = 0; i < part_.layers; ++i) {
    const DecoderLayer* layer = layers_[static_cast<size_t>(i)].get();
    const std::string name = layer_name(part_.first_layer + i);
    segments_.push_back({{.name = name, .parameters = parameters_below({name})},
                         [layer](Tape& tape, const Bundle& in, const nn::Batch& batch,
                                 Phase phase) { return layer->forward(tape, in, batch, phase); }});
  }
  if (part_.head) {
    const std::string output = config_.untied ? "output" : "embedding";
    head_ = {.name = "head", .parameters = parameters_below({"final_norm", output})};
  }
}

Bundle GptModel::embed(Tape& tape, const nn::Batch& batch, Phase phase) const {
  Var x_TH = embedding_->look_up(tape, batch.tokens, 0);
  if (position_embedding_ != nullptr)
    x_TH = ops::add(tape, x_TH, position_embedding_->look_up(tape, batch.positions));
  const Var hidden_TH = (*embedding_dropout_)(tape, x_TH, batch, phase == Phase::train);
  return {{"hidden", hidden_TH}, {"residual", Var()}};
}

Var GptModel::final_norm(Tape& tape, const Bundle& in) const {
  MG_ASSERT(part_.head);
  return (*final_norm_)(tape, in["hidden"], residual_of(in)).normed;
}

Tensor GptModel::loss(Tape& tape, const Bundle& in, const nn::Batch& batch) const {
  return output_.table->loss(tape, final_norm(tape, in), batch.labels, batch.loss_weights,
                             output_.use);
}

Tensor GptModel::loss_logits(Tape& tape, const Bundle& in) const {
  return output_.table->loss_logits(tape, final_norm(tape, in).value, output_.use);
}

nn::SequenceStateShape GptModel::state_shape(int64_t sequences, int64_t capacity) const {
  return {.layers = part_.layers,
          .sequences = sequences,
          .capacity = capacity,
          .kv_heads = layers_.empty() ? 0 : layers_.front()->kv_heads(),
          .head_size = config_.kv_channels};
}

Var GptModel::logits(Tape& tape, const Bundle& in) const {
  return output_.table->logits(tape, final_norm(tape, in), output_.use);
}

}  // namespace megatron::models
