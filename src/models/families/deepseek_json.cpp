#include "models/families/deepseek_json.h"

#include "base/error.h"

namespace megatron::models {
namespace {

nn::LatentAttentionConfig read_latent_attention(const Json& j) {
  return {.heads = integer(j, "num_attention_heads"),
          .query_rank = integer(j, "q_lora_rank", 0),
          .latent_rank = integer(j, "kv_lora_rank"),
          .head = {.plain = integer(j, "qk_nope_head_dim"),
                   .rotated = integer(j, "qk_rope_head_dim"),
                   .value = integer(j, "v_head_dim")},
          .bias = boolean(j, "attention_bias"),
          .output_bias = boolean(j, "attention_bias"),
          .rotary = "default"};
}

const nn::LatentAttentionConfig& latent_attention_of(const DecoderValue& value) {
  const auto* a = std::get_if<nn::LatentAttentionConfig>(&value.layers.at(0).mixer);
  MG_CHECK(a != nullptr, "a model without latent attention");
  return *a;
}

// The value with attention of heads of the rotary key's size in place of latent attention, so that
// the keys that all families have can be written.
DecoderValue with_heads(const DecoderValue& value) {
  const nn::LatentAttentionConfig& a = latent_attention_of(value);
  DecoderValue other = value;
  for (LayerValue& layer : other.layers)
    layer.mixer = nn::AttentionConfig{.heads = a.heads,
                                      .kv_heads = a.heads,
                                      .head_size = a.head.rotated,
                                      .qkv_bias = a.bias,
                                      .rotary = a.rotary};
  return other;
}

// Throws Error for keys of later models of this form, which compute something else.
void refuse_successors(const Json& j) {
  constexpr std::string_view kSparse = "sparse attention (DeepSeek-V3.2)",
                             kCompressed = "compressed attention (DeepSeek-V4)";
  constexpr std::pair<std::string_view, std::string_view> kKeys[] = {
      {"index_n_heads", kSparse},
      {"index_head_dim", kSparse},
      {"index_topk", kSparse},
      {"compress_ratios", kCompressed},
      {"hc_mult", "hyper-connections (DeepSeek-V4)"}};
  for (const auto& [key, meaning] : kKeys) {
    const Json* const there = present(j, key);
    MG_CHECK(there == nullptr,
             "config.json has {} = {}: {} is not supported; use a directory of "
             "DeepSeek-V2, V3, V3.1 or R1",
             key, there->dump(), meaning);
  }
}

int64_t first_dense_layers(const DecoderValue& value) {
  int64_t dense = 0;
  while (value.layers[static_cast<size_t>(dense)].moe() == nullptr) ++dense;
  return dense;
}

}  // namespace

DecoderValue read_deepseek(const Json& j, const DeepseekForm& form) {
  refuse_successors(j);
  DecoderValue value = read_common(j, form.common);
  value.router.states_router_logits = boolean(j, "output_router_logits");
  value.rotary["default"].interleaved = form.interleaved;
  const nn::LatentAttentionConfig attention = read_latent_attention(j);
  MG_CHECK(integer(j, "num_key_value_heads", attention.heads) == attention.heads,
           "config.json has num_key_value_heads = {}, but num_attention_heads = {}; with latent "
           "attention they are equal",
           integer(j, "num_key_value_heads"), attention.heads);
  for (LayerValue& layer : value.layers) layer.mixer = attention;
  nn::MoeConfig experts{.experts = integer(j, "n_routed_experts"),
                        .choices = integer(j, "num_experts_per_tok"),
                        .router = form.router,
                        .correction_bias = form.correction_bias,
                        .expert = *value.layers[0].mlp()};
  experts.router.scale = number(j, "routed_scaling_factor");
  experts.expert.ffn = integer(j, "moe_intermediate_size");
  experts.shared_ffn = experts.expert.ffn * integer(j, "n_shared_experts");
  const int64_t dense = count(j, "first_k_dense_replace");
  refuse_unless(j, "moe_layer_freq", 1);
  set_experts(value, experts, [&](int64_t layer) { return layer >= dense; });
  return value;
}

Json write_deepseek(const DecoderValue& value, const CommonForm& common) {
  const nn::LatentAttentionConfig& a = latent_attention_of(value);
  Json j = write_common_of_experts(with_heads(value), common);
  const nn::MoeConfig& moe = *value.first_moe();
  MG_CHECK(moe.shared_ffn % moe.expert.ffn == 0,
           "a shared expert of width {}, which is not a multiple of an expert's {}", moe.shared_ffn,
           moe.expert.ffn);
  j.set("attention_bias", a.bias);
  j.set("first_k_dense_replace", first_dense_layers(value));
  j.set("kv_lora_rank", a.latent_rank);
  j.set("moe_intermediate_size", moe.expert.ffn);
  j.set("n_routed_experts", moe.experts);
  j.set("n_shared_experts", moe.shared_ffn / moe.expert.ffn);
  j.set("num_experts_per_tok", moe.choices);
  j.set("output_router_logits", value.router.states_router_logits);
  j.set("q_lora_rank", a.query_rank == 0 ? Json() : Json(a.query_rank));
  j.set("qk_head_dim", a.head.key());
  j.set("qk_nope_head_dim", a.head.plain);
  j.set("qk_rope_head_dim", a.head.rotated);
  j.set("routed_scaling_factor", moe.router.scale);
  j.set("v_head_dim", a.head.value);
  return j;
}

FamilyTensors deepseek_tensors(const DecoderValue& value) {
  return expert_tensors(value, {},
                        {{"attention.q_down", "self_attn.q_a_proj"},
                         {"attention.q_latent_norm", "self_attn.q_a_layernorm"},
                         {"attention.q_up", "self_attn.q_b_proj"},
                         {"attention.q", "self_attn.q_proj"},
                         {"attention.kv_down", "self_attn.kv_a_proj_with_mqa"},
                         {"attention.kv_latent_norm", "self_attn.kv_a_layernorm"},
                         {"attention.kv_up", "self_attn.kv_b_proj"},
                         {"mlp.router.correction", "mlp.gate.e_score_correction_bias"},
                         {"mlp.shared.up", "mlp.shared_experts.gate_proj", Take::gate},
                         {"mlp.shared.up", "mlp.shared_experts.up_proj", Take::up},
                         {"mlp.shared.down", "mlp.shared_experts.down_proj"}},
                        true);
}

}  // namespace megatron::models
