#include "plan/megatron_memory.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace megatron::plan {
namespace {

double number(int64_t value) { return static_cast<double>(value); }

// Weights of a part of the model, by how ranks share them.
struct Weights {
  int64_t shared_out = 0;  // divided over the tensor-parallel ranks
  int64_t replicated = 0;
  int64_t experts = 0, active_experts = 0;
  int64_t sum() const { return shared_out + replicated + experts; }
  int64_t active() const { return shared_out + replicated + active_experts; }
  Weights& operator+=(const Weights& other) {
    shared_out += other.shared_out;
    replicated += other.replicated;
    experts += other.experts;
    active_experts += other.active_experts;
    return *this;
  }
};

int64_t norm_weights(const MegatronShape& s) { return s.rms_norm ? 1 : 2; }

int64_t attention_weights(const MegatronShape& s) {
  if (s.multi_latent_attention) return s.latent_attention_weights(norm_weights(s));
  return 2 * s.hidden_size * s.head_size() * (s.num_attention_heads + s.key_groups());
}

Weights layer_weights(const MegatronShape& s, bool has_experts) {
  const int64_t h = s.hidden_size, k = s.mlp_matrices();
  Weights w{.shared_out = attention_weights(s), .replicated = 2 * h * norm_weights(s)};
  if (!has_experts) {
    w.shared_out += h * s.ffn_hidden_size * k;
    return w;
  }
  MG_CHECK(s.moe_ffn_hidden_size.has_value(),
           "--moe-ffn-hidden-size is not given; Megatron-LM's memory report needs it for experts");
  const int64_t each = s.moe_latent_size.value_or(h) * *s.moe_ffn_hidden_size * k;
  w.experts = *s.num_experts * each;
  w.active_experts = s.moe_router_topk * each;
  w.shared_out += h * s.moe_shared_expert_intermediate_size.value_or(0) * k;
  w.replicated += *s.num_experts * (h + (s.add_bias_linear ? 1 : 0)) +
                  (s.moe_shared_expert_gate ? h : 0) + 2 * h * s.moe_latent_size.value_or(0);
  return w;
}

struct ModelWeights {
  Weights block, prediction;
  int64_t table = 0;  // parameters of the embedding, and of the output layer
};

ModelWeights model_weights(const MegatronShape& s) {
  ModelWeights model{.table = s.hidden_size * s.padded_vocab_size};
  const std::vector<bool> experts = s.expert_layers();
  for (const bool has_experts : experts) model.block += layer_weights(s, has_experts);
  model.block.replicated += s.hidden_size * norm_weights(s);
  for (int64_t i = 0; i < s.prediction_layers(); ++i)
    model.prediction += layer_weights(s, experts.back());
  return model;
}

struct Shard {
  double dense = 0, experts = 0;
  double sum() const { return dense + experts; }
};

Shard shard(const Weights& w, const MegatronLayout& l, double stages) {
  return {number(w.shared_out) / stages / number(l.tensor_model_parallel_size) +
              number(w.replicated) / stages,
          number(w.experts) / stages /
              number(l.expert_tensor_parallel_size * l.expert_model_parallel_size)};
}

Shard most_loaded(const MegatronShape& s, const MegatronLayout& l, const ModelWeights& model) {
  const Shard block = shard(model.block, l, number(l.pipeline_model_parallel_size));
  const Shard prediction = shard(model.prediction, l, 1);
  const bool two_tables =
      s.untie_embeddings_and_output_weights && l.pipeline_model_parallel_size == 1;
  const double tables =
      number(model.table) * (two_tables ? 2 : 1) / number(l.tensor_model_parallel_size);
  return {block.dense + prediction.dense + tables, block.experts + prediction.experts};
}

double state_bytes(const Shard& shard, const MegatronLayout& l) {
  if (!l.use_distributed_optimizer) return 18 * shard.sum();
  const int64_t expert_ranks =
      l.expert_tensor_parallel_size * l.expert_model_parallel_size * l.pipeline_model_parallel_size;
  return shard.dense * (6 + 12 / number(l.data_parallel_size)) +
         shard.experts * (6 + 12 / number(l.world_size / expert_ranks));
}

// Number of micro-batches in flight that a stage holds, as a share of the number of stages.
double in_flight(const MegatronLayout& l) {
  const double stages = number(l.pipeline_model_parallel_size);
  if (l.virtual_pipeline_model_parallel_size)
    return 1 + (stages - 1) / (stages * number(*l.virtual_pipeline_model_parallel_size));
  return l.num_microbatches ? std::min(1.0, number(*l.num_microbatches) / stages) : 1;
}

void add_activations(const MegatronShape& s, const MegatronLayout& l, MegatronMemory& memory) {
  const double tokens = number(l.seq_length * l.micro_batch_size), h = number(s.hidden_size),
               f = number(s.ffn_hidden_size), tp = number(l.tensor_model_parallel_size),
               stages = number(l.pipeline_model_parallel_size),
               vocabulary = number(s.padded_vocab_size), layers = number(s.num_layers);
  const double embedding = 8 * tokens * stages + tokens * h * stages;
  const double parallel_layer = tokens * h * (18 + 4 * f / h), layer = tokens * h * (10 + 24 / tp);
  double parallel = (parallel_layer * layers + embedding) * in_flight(l);
  double plain = (layer * layers + embedding) * in_flight(l);
  if (l.pipeline_model_parallel_size == 1) {
    parallel += 4 * tokens * h * (1 + vocabulary / h);
    plain += 2 * (tokens * vocabulary / tp + tokens * h);
  }
  memory.activations_sequence_parallel = parallel / tp;
  memory.activations = plain * 1.05;
  memory.layer_sequence_parallel = parallel_layer / tp;
  memory.layer = layer;
}

}  // namespace

MegatronMemory megatron_memory(const MegatronShape& s, const MegatronLayout& l) {
  s.check();
  const ModelWeights model = model_weights(s);
  const Shard most = most_loaded(s, l, model);
  MegatronMemory memory;
  memory.parameters = {
      .block = model.block.sum(),
      .active_block = model.block.active(),
      .prediction = model.prediction.sum(),
      .embedding = model.table * (s.untie_embeddings_and_output_weights ? 2 : 1),
      .most_loaded = most.sum(),
      .other = shard(model.block, l, number(l.pipeline_model_parallel_size)).sum()};
  memory.weights_and_optimizer = state_bytes(most, l);
  add_activations(s, l, memory);
  memory.in_flight = in_flight(l);
  return memory;
}

MegatronEstimate megatron_estimate(const models::ModelFacts& model, int64_t padded_vocabulary,
                                   const MegatronLayout& layout) {
  const MegatronMemory memory = megatron_memory(megatron_shape(model, padded_vocabulary), layout);
  const double activations =
      layout.shows_sequence_parallel() ? memory.activations_sequence_parallel : memory.activations;
  return {static_cast<int64_t>(std::llround(memory.weights_and_optimizer)),
          static_cast<int64_t>(std::llround(activations))};
}

}  // namespace megatron::plan
