// Mixtral (Jiang et al. 2024): Mistral with eight experts in every layer, two of them per token.
#include "models/families/all.h"
#include "models/families/experts_json.h"

namespace megatron::models {
namespace mixtral {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu",
  "max_position_embeddings": 131072, "initializer_range": 0.02, "rms_norm_eps": 1e-5,
  "tie_word_embeddings": false, "rope_theta": 1000000.0, "attention_dropout": 0.0,
  "num_experts_per_tok": 2, "num_local_experts": 8, "output_router_logits": false,
  "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0})";

constexpr DecoderFamily::Alias kAliases[] = {{"num_experts", "num_local_experts"}};

DecoderValue read(const Json& j) {
  refuse_unless(j, "router_jitter_noise", 0.0);
  DecoderValue value = read_common(j);
  read_window(j, value);
  read_aux_loss(j, value);
  const nn::MoeConfig experts{.experts = integer(j, "num_local_experts"),
                              .choices = integer(j, "num_experts_per_tok"),
                              .expert = *value.layers[0].mlp()};
  set_experts(value, experts, [](int64_t) { return true; });
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common_of_experts(value);
  const nn::MoeConfig& moe = *value.first_moe();
  j.set("architectures", Json::Array{"MixtralForCausalLM"});
  j.set("num_experts_per_tok", moe.choices);
  j.set("num_local_experts", moe.experts);
  j.set("router_jitter_noise", 0.0);
  j.set("sliding_window", sliding_window(value));
  write_aux_loss(value, j);
  return j;
}

FamilyTensors tensors(const DecoderValue& value) {
  return expert_tensors(value, {.router = "block_sparse_moe.gate.weight",
                                .gate = "block_sparse_moe.experts.#.w1",
                                .up = "block_sparse_moe.experts.#.w3",
                                .down = "block_sparse_moe.experts.#.w2"});
}

constexpr DecoderFamily::Key kKeys[] = {{"--moe-ffn-hidden-size", "intermediate_size"},
                                        {"--num-experts", "num_local_experts"}};

}  // namespace mixtral

const DecoderFamily kMixtral = {.name = "mixtral",
                                .models = "Mixtral 8x7B, 8x22B",
                                .read = mixtral::read,
                                .write = mixtral::write,
                                .tensors = mixtral::tensors,
                                .defaults = mixtral::kDefaults,
                                .aliases = mixtral::kAliases,
                                .keys = mixtral::kKeys,
                                .score_class = "MixtralForSequenceClassification"};

}  // namespace megatron::models
