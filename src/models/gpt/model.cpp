// T tokens, H hidden, V vocabulary
#include "models/gpt/model.h"

#include <cmath>
#include <unordered_map>

#include "base/philox.h"
#include "models/gpt/tensor_map.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/linear_cross_entropy.h"

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

kernels::DropoutArgs::Mask dropout_mask(const std::string& name, double p, uint64_t seed) {
  return {.p = static_cast<float>(p), .seed = seed, .stream = hash_name(name)};
}

Var dropout(Tape& tape, const Var& x, kernels::DropoutArgs::Mask mask, const nn::Batch& batch,
            Phase phase) {
  if (phase != Phase::train) return x;
  mask.samples = batch.samples;
  return ops::dropout(tape, x, mask);
}

// What a parameter is to an optimizer.
void describe(parallel::Placed& placed, const GptConfig& c) {
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

}  // namespace

DecoderLayer::DecoderLayer(nn::Builder& builder, int64_t index, const GptConfig& c,
                           const nn::RotaryTable* rotary, uint64_t seed)
    : DecoderLayer(builder, "layers." + std::to_string(index), index, c, rotary, seed) {}

DecoderLayer::DecoderLayer(nn::Builder& builder, const std::string& name, int64_t index,
                           const GptConfig& c, const nn::RotaryTable* rotary, uint64_t seed)
    : attention_norm_(builder, name + ".attention_norm", c.hidden_size, c.normalization,
                      c.norm_epsilon),
      attention_(builder, name + ".attention",
                 {.hidden = c.hidden_size,
                  .heads = c.num_attention_heads,
                  .key_heads = c.num_query_groups,
                  .head_size = c.kv_channels,
                  .qkv_bias = c.qkv_bias,
                  .output_bias = c.attention_output_bias,
                  .dropout = c.attention_dropout,
                  .seed = seed,
                  .layer = index},
                 rotary, matrix_init(c), output_init(c)),
      mlp_norm_(builder, name + ".mlp_norm", c.hidden_size, c.normalization, c.norm_epsilon),
      mlp_(builder, name + ".mlp",
           {.hidden = c.hidden_size,
            .ffn = c.ffn_hidden_size,
            .activation = c.activation,
            .gated = c.gated,
            .bias = c.mlp_bias},
           matrix_init(c), output_init(c)),
      attention_dropout_(dropout_mask(name + ".attention.hidden_dropout", c.hidden_dropout, seed)),
      mlp_dropout_(dropout_mask(name + ".mlp.hidden_dropout", c.hidden_dropout, seed)) {}

Bundle DecoderLayer::forward(Tape& tape, const Bundle& in, const nn::Batch& batch,
                             Phase phase) const {
  const auto [x_TH, residual_TH] = attention_norm_(tape, in["hidden"], in["residual"]);
  const Var a_TH = dropout(tape, attention_(tape, x_TH, batch, phase == Phase::train),
                           attention_dropout_, batch, phase);
  const auto [y_TH, residual2_TH] = mlp_norm_(tape, a_TH, residual_TH);
  const Var m_TH = dropout(tape, mlp_(tape, y_TH), mlp_dropout_, batch, phase);
  return {{"hidden", m_TH}, {"residual", residual2_TH}};
}

GptModel::GptModel(const GptConfig& config, Runtime& runtime, DType type, uint64_t seed)
    : config_(config), runtime_(runtime) {
  nn::Builder builder(runtime, type, [this](const std::string& name, const Shape& shape) {
    return placement_of(config_, name, shape);
  });
  const GptConfig& c = config_;
  const bool rope = c.position_embedding == PositionEmbedding::rope;
  const parallel::Init init = embedding_init(c);
  Parameter& table =
      builder.add("embedding.weight", {c.vocab_size, c.hidden_size}, init, c.untied ? 1 : 2);
  embedding_ = Weight(table, 0);
  if (rope) {
    rotary_ = nn::RotaryTable::make(runtime, type, c.max_position_embeddings, c.kv_channels,
                                    c.rotary_base);
  } else {
    position_embedding_ =
        builder.add("position_embedding.weight", {c.max_position_embeddings, c.hidden_size}, init);
  }
  embedding_dropout_ = dropout_mask("embedding.hidden_dropout", c.hidden_dropout, seed);
  for (int64_t i = 0; i < c.num_layers; ++i) {
    layers_.push_back(
        std::make_unique<DecoderLayer>(builder, i, c, rope ? &rotary_ : nullptr, seed));
  }
  final_norm_ = std::make_unique<nn::AddNorm>(builder, "final_norm", c.hidden_size, c.normalization,
                                              c.norm_epsilon);
  output_ =
      c.untied ? Weight(builder.add("output.weight", {c.vocab_size, c.hidden_size}, matrix_init(c)))
               : Weight(table, 1);
  owned_ = builder.take();
  for (const auto& placed : owned_) {
    describe(*placed, c);
    parameters_.push_back(placed.get());
  }

  std::unordered_map<std::string, std::vector<Parameter*>> by_span;
  for (const auto& placed : owned_)
    by_span[span_of(placed->parameter.name)].push_back(&placed->parameter);
  const auto parameters_below = [&](std::initializer_list<std::string> spans) {
    std::vector<Parameter*> found;
    for (const std::string& span : spans)
      found.insert(found.end(), by_span[span].begin(), by_span[span].end());
    return found;
  };
  segments_.push_back(
      {{.name = "embedding", .parameters = parameters_below({"embedding", "position_embedding"})},
       [this](Tape& tape, const Bundle&, const nn::Batch& batch, Phase phase) {
         return embed(tape, batch, phase);
       }});
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const DecoderLayer* layer = layers_[static_cast<size_t>(i)].get();
    const std::string name = "layers." + std::to_string(i);
    segments_.push_back({{.name = name, .parameters = parameters_below({name})},
                         [layer](Tape& tape, const Bundle& in, const nn::Batch& batch,
                                 Phase phase) { return layer->forward(tape, in, batch, phase); }});
  }
  head_ = {.name = "head",
           .parameters = parameters_below({"final_norm", c.untied ? "output" : "embedding"})};
}

void GptModel::initialize(uint64_t seed) {
  for (parallel::Placed* placed : parameters_) parallel::initialize(*placed, seed, runtime_.pool());
}

Bundle GptModel::embed(Tape& tape, const nn::Batch& batch, Phase phase) const {
  Var x_TH = ops::embedding(tape, batch.tokens, embedding_);
  if (position_embedding_) {
    x_TH = ops::add(tape, x_TH, ops::embedding(tape, batch.positions, position_embedding_));
  }
  return {{"hidden", dropout(tape, x_TH, embedding_dropout_, batch, phase)}, {"residual", Var()}};
}

Var GptModel::final_norm(Tape& tape, const Bundle& in) const {
  return (*final_norm_)(tape, in["hidden"], in["residual"]).normed;
}

Tensor GptModel::loss(Tape& tape, const Bundle& in, const nn::Batch& batch) const {
  return ops::linear_cross_entropy(tape, final_norm(tape, in), output_, batch.labels,
                                   batch.weights);
}

Tensor GptModel::loss_logits(Tape& tape, const Bundle& in) const {
  return ops::linear_logits(final_norm(tape, in).value, output_, tape);
}

nn::SequenceStateShape GptModel::state_shape(int64_t sequences, int64_t capacity) const {
  return {.layers = config_.num_layers,
          .sequences = sequences,
          .capacity = capacity,
          .key_heads = config_.num_query_groups,
          .head_size = config_.kv_channels};
}

Var GptModel::logits(Tape& tape, const Bundle& in) const {
  return ops::linear(tape, final_norm(tape, in), output_);
}

}  // namespace megatron::models
