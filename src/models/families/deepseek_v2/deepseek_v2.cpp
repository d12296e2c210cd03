// DeepSeek-V2 (DeepSeek-AI 2024): latent attention, experts weighted by a softmax over all of them,
// chosen among all (greedy) or among the best groups.
#include "base/error.h"
#include "models/families/all.h"
#include "models/families/deepseek_json.h"

namespace megatron::models {
namespace deepseek_v2 {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 11008,
  "moe_intermediate_size": 1407, "num_hidden_layers": 32, "num_attention_heads": 32,
  "n_shared_experts": 2, "n_routed_experts": 64, "output_router_logits": false,
  "routed_scaling_factor": 1.0, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64,
  "v_head_dim": 128, "qk_nope_head_dim": 128, "topk_method": "greedy", "first_k_dense_replace": 0,
  "hidden_act": "silu", "max_position_embeddings": 2048, "initializer_range": 0.02,
  "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "rope_theta": 10000.0,
  "attention_bias": false, "mlp_bias": false, "attention_dropout": 0.0})";

constexpr std::string_view kGreedy = "greedy", kGroups = "group_limited_greedy";
constexpr CommonForm kForm{.mlp_bias = true};
constexpr DecoderFamily::Alias kAliases[] = {{"num_experts", "n_routed_experts"}};

// norm_topk_prob is not read, as in transformers.
DecoderValue read(const Json& j) {
  refuse_unless(j, "scoring_func", "softmax");
  DeepseekForm form{.common = kForm, .router = {.softmax_first = true}};
  const std::string method = text(j, "topk_method");
  MG_CHECK(method == kGreedy || method == kGroups,
           "config.json has topk_method = '{}'; supported: {}, {}", method, kGreedy, kGroups);
  if (method == kGroups) {
    form.router.groups = integer(j, "n_group");
    form.router.chosen_groups = integer(j, "topk_group");
  }
  return read_deepseek(j, form);
}

Json write(const DecoderValue& value) {
  Json j = write_deepseek(value, kForm);
  const kernels::RouterForm& router = value.first_moe()->router;
  const bool grouped = router.groups > 1;
  j.set("architectures", Json::Array{"DeepseekV2ForCausalLM"});
  j.set("n_group", grouped ? Json(router.groups) : Json());
  j.set("norm_topk_prob", false);
  j.set("topk_group", grouped ? Json(router.chosen_groups) : Json());
  j.set("topk_method", std::string(grouped ? kGroups : kGreedy));
  return j;
}

constexpr DecoderFamily::Key kKeys[] = {{"--num-experts", "n_routed_experts"}};

}  // namespace deepseek_v2

const DecoderFamily kDeepseekV2 = {.name = "deepseek_v2",
                                   .models = "DeepSeek-V2, DeepSeek-V2-Lite",
                                   .read = deepseek_v2::read,
                                   .write = deepseek_v2::write,
                                   .tensors = deepseek_tensors,
                                   .defaults = deepseek_v2::kDefaults,
                                   .aliases = deepseek_v2::kAliases,
                                   .keys = deepseek_v2::kKeys};

}  // namespace megatron::models
