// Qwen3 with experts (Yang et al. 2025).
#include "models/families/all.h"
#include "models/families/experts_json.h"

namespace megatron::models {
namespace qwen3_moe {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
  "num_attention_heads": 32, "num_key_value_heads": 4, "hidden_act": "silu",
  "max_position_embeddings": 32768, "initializer_range": 0.02, "rms_norm_eps": 1e-6,
  "tie_word_embeddings": false, "rope_theta": 10000.0, "attention_bias": false,
  "use_sliding_window": false, "sliding_window": 4096, "attention_dropout": 0.0,
  "decoder_sparse_step": 1, "moe_intermediate_size": 768, "num_experts_per_tok": 8,
  "num_experts": 128, "norm_topk_prob": false, "output_router_logits": false,
  "router_aux_loss_coef": 0.001})";

constexpr DecoderFamily::Alias kAliases[] = {{"num_local_experts", "num_experts"}};

constexpr CommonForm kForm{.attention_bias = true, .qk_norm = nn::QkNorm::head};

DecoderValue read(const Json& j) {
  DecoderValue value = read_common(j, kForm);
  read_aux_loss(j, value);
  if (boolean(j, "use_sliding_window")) read_window(j, value);
  nn::MoeConfig experts{.experts = integer(j, "num_experts"),
                        .choices = integer(j, "num_experts_per_tok"),
                        .router = read_softmax_router(j),
                        .expert = *value.layers[0].mlp()};
  experts.expert.ffn = integer(j, "moe_intermediate_size");
  set_experts(value, experts, [&](int64_t layer) { return is_sparse(j, layer); });
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common_of_experts(value, kForm);
  const nn::MoeConfig& moe = *value.first_moe();
  j.set("architectures", Json::Array{"Qwen3MoeForCausalLM"});
  j.set("moe_intermediate_size", moe.expert.ffn);
  j.set("norm_topk_prob", normalises(moe));
  j.set("num_experts_per_tok", moe.choices);
  j.set("num_local_experts", moe.experts);
  j.set("sliding_window", sliding_window(value));
  j.set("use_sliding_window", window_of(value) > 0);
  write_sparse_layers(value, j);
  write_aux_loss(value, j);
  return j;
}

FamilyTensors tensors(const DecoderValue& value) { return expert_tensors(value, {}); }

constexpr DecoderFamily::OlderKey kOlderKeys[] = {{"num_local_experts", "num_experts"}};

constexpr DecoderFamily::Key kKeys[] = {{"--num-experts", "num_local_experts"}};

}  // namespace qwen3_moe

const DecoderFamily kQwen3Moe = {.name = "qwen3_moe",
                                 .models = "Qwen3-30B-A3B, Qwen3-235B-A22B",
                                 .read = qwen3_moe::read,
                                 .write = qwen3_moe::write,
                                 .tensors = qwen3_moe::tensors,
                                 .defaults = qwen3_moe::kDefaults,
                                 .aliases = qwen3_moe::kAliases,
                                 .keys = qwen3_moe::kKeys,
                                 .older_keys = qwen3_moe::kOlderKeys,
                                 .score_class = "Qwen3MoeForSequenceClassification"};

}  // namespace megatron::models
