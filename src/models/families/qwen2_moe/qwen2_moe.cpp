// Qwen1.5-MoE and Qwen2-MoE (Yang et al. 2024): Qwen2 with experts, a gated shared expert, and
// weights that need not sum to 1.
#include "models/families/all.h"
#include "models/families/experts_json.h"

namespace megatron::models {
namespace qwen2_moe {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
  "num_attention_heads": 16, "num_key_value_heads": 16, "hidden_act": "silu",
  "max_position_embeddings": 32768, "initializer_range": 0.02, "rms_norm_eps": 1e-6,
  "tie_word_embeddings": false, "rope_theta": 10000.0, "use_sliding_window": false,
  "sliding_window": 4096, "max_window_layers": 28, "attention_dropout": 0.0,
  "decoder_sparse_step": 1, "moe_intermediate_size": 1408,
  "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4, "num_experts": 60,
  "norm_topk_prob": false, "output_router_logits": false, "router_aux_loss_coef": 0.001,
  "qkv_bias": true})";

DecoderValue read(const Json& j) {
  DecoderValue value = read_common(j);
  read_aux_loss(j, value);
  const bool bias = boolean(j, "qkv_bias");
  for (LayerValue& layer : value.layers) layer.attention()->qkv_bias = bias;
  read_optional_windows(j, value, [end = count(j, "max_window_layers")](int64_t layer) {
    return layer % 2 == 0 && layer < end;
  });
  nn::MoeConfig experts{.experts = integer(j, "num_experts"),
                        .choices = integer(j, "num_experts_per_tok"),
                        .router = read_softmax_router(j),
                        .expert = *value.layers[0].mlp(),
                        .shared_ffn = integer(j, "shared_expert_intermediate_size"),
                        .shared_gate = true};
  experts.expert.ffn = integer(j, "moe_intermediate_size");
  set_experts(value, experts, [&](int64_t layer) { return is_sparse(j, layer); });
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common_of_experts(value);
  const nn::MoeConfig& moe = *value.first_moe();
  const int64_t window = window_of(value);
  j.set("architectures", Json::Array{"Qwen2MoeForCausalLM"});
  write_windows(value, j);
  j.set("max_window_layers", first_window(value));
  j.set("moe_intermediate_size", moe.expert.ffn);
  j.set("norm_topk_prob", normalises(moe));
  j.set("num_experts", moe.experts);
  j.set("num_experts_per_tok", moe.choices);
  j.set("qkv_bias", value.first_attention()->qkv_bias);
  j.set("shared_expert_intermediate_size", moe.shared_ffn);
  j.set("sliding_window", window);
  j.set("use_sliding_window", window > 0);
  write_sparse_layers(value, j);
  write_aux_loss(value, j);
  return j;
}

FamilyTensors tensors(const DecoderValue& value) {
  return expert_tensors(value, {},
                        {{"mlp.shared.up", "mlp.shared_expert.gate_proj", Take::gate},
                         {"mlp.shared.up", "mlp.shared_expert.up_proj", Take::up},
                         {"mlp.shared.down", "mlp.shared_expert.down_proj"},
                         {"mlp.shared_gate", "mlp.shared_expert_gate"}});
}

}  // namespace qwen2_moe

const DecoderFamily kQwen2Moe = {.name = "qwen2_moe",
                                 .models = "Qwen1.5-MoE, Qwen2-57B-A14B",
                                 .read = qwen2_moe::read,
                                 .write = qwen2_moe::write,
                                 .tensors = qwen2_moe::tensors,
                                 .defaults = qwen2_moe::kDefaults,
                                 .score_class = "Qwen2MoeForSequenceClassification"};

}  // namespace megatron::models
