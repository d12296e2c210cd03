// DeepSeek-V3 and R1 (DeepSeek-AI 2025): latent attention, sigmoid scores with a correction bias,
// groups of experts.
#include "models/families/all.h"
#include "models/families/deepseek_json.h"
#include "models/families/experts_json.h"

namespace megatron::models {
namespace deepseek_v3 {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
  "num_key_value_heads": 128,
  "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
  "n_shared_experts": 1, "n_routed_experts": 256, "output_router_logits": false,
  "routed_scaling_factor": 2.5, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64,
  "v_head_dim": 128, "qk_nope_head_dim": 128, "n_group": 8, "topk_group": 4,
  "num_experts_per_tok": 8, "first_k_dense_replace": 3, "norm_topk_prob": true,
  "hidden_act": "silu", "max_position_embeddings": 4096, "initializer_range": 0.02,
  "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "rope_theta": 10000.0,
  "rope_interleave": true, "attention_bias": false, "attention_dropout": 0.0})";

constexpr DecoderFamily::Alias kAliases[] = {{"num_local_experts", "n_routed_experts"}};

DecoderValue read(const Json& j) {
  refuse_unless(j, "scoring_func", "sigmoid");
  refuse_unless(j, "topk_method", "noaux_tc");
  const DeepseekForm form{.common = {},
                          .router = read_sigmoid_router(j),
                          .correction_bias = true,
                          .interleaved = boolean(j, "rope_interleave")};
  DecoderValue value = read_deepseek(j, form);
  read_prediction(j, value);
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_deepseek(value, {});
  const nn::MoeConfig& moe = *value.first_moe();
  j.set("architectures", Json::Array{"DeepseekV3ForCausalLM"});
  j.set("n_group", moe.router.groups);
  j.set("norm_topk_prob", moe.router.normalised);
  write_prediction(value, j);
  const auto rotary = value.rotary.find("default");
  j.set("rope_interleave", rotary != value.rotary.end() && rotary->second.interleaved);
  j.set("topk_group", moe.router.chosen_groups);
  return j;
}

constexpr DecoderFamily::Key kKeys[] = {{"--num-experts", "n_routed_experts"}};

}  // namespace deepseek_v3

const DecoderFamily kDeepseekV3 = {.name = "deepseek_v3",
                                   .models = "DeepSeek-V3, DeepSeek-V3.1, DeepSeek-R1",
                                   .read = deepseek_v3::read,
                                   .write = deepseek_v3::write,
                                   .tensors = deepseek_tensors,
                                   .defaults = deepseek_v3::kDefaults,
                                   .aliases = deepseek_v3::kAliases,
                                   .keys = deepseek_v3::kKeys,
                                   .prediction_layers = 1};
// The same files under another name.
const DecoderFamily kKimiK2 = {.name = "kimi_k2",
                               .models = "Kimi K2",
                               .read = deepseek_v3::read,
                               .write = deepseek_v3::write,
                               .tensors = deepseek_tensors,
                               .defaults = deepseek_v3::kDefaults,
                               .aliases = deepseek_v3::kAliases,
                               .keys = deepseek_v3::kKeys};

}  // namespace megatron::models
