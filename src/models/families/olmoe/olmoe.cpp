// OLMoE (Muennighoff et al. 2024): experts in every layer, queries and keys normalised over all
// heads.
#include "models/families/all.h"
#include "models/families/experts_json.h"

namespace megatron::models {
namespace olmoe {
namespace {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 16,
  "num_attention_heads": 16, "hidden_act": "silu", "max_position_embeddings": 4096,
  "initializer_range": 0.02, "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
  "rope_theta": 10000.0, "attention_bias": false, "attention_dropout": 0.0,
  "num_experts_per_tok": 8, "num_experts": 64, "output_router_logits": false,
  "router_aux_loss_coef": 0.01, "norm_topk_prob": false})";

constexpr DecoderFamily::Alias kAliases[] = {{"num_local_experts", "num_experts"}};
constexpr double kAuxLoss = 0.01;

DecoderValue read(const Json& j) {
  DecoderValue value = read_common(j);
  read_aux_loss(j, value);
  const bool bias = boolean(j, "attention_bias");
  const Json* clip = present(j, "clip_qkv");
  for (LayerValue& layer : value.layers) {
    nn::AttentionConfig& attention = *layer.attention();
    attention.qk_norm = nn::QkNorm::full_width;
    attention.qkv_bias = attention.output_bias = bias;
    if (clip != nullptr) attention.qkv_clip = number(j, "clip_qkv", 0);
  }
  const nn::MoeConfig experts{.experts = integer(j, "num_experts"),
                              .choices = integer(j, "num_experts_per_tok"),
                              .router = read_softmax_router(j),
                              .expert = *value.layers[0].mlp()};
  set_experts(value, experts, [](int64_t) { return true; });
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common_of_experts(value);
  const nn::MoeConfig& moe = *value.first_moe();
  const nn::AttentionConfig& attention = *value.first_attention();
  j.set("architectures", Json::Array{"OlmoeForCausalLM"});
  j.set("attention_bias", attention.qkv_bias);
  j.set("clip_qkv", attention.qkv_clip > 0 ? Json(attention.qkv_clip) : Json());
  j.set("model_type", "olmoe");
  j.set("norm_topk_prob", normalises(moe));
  j.set("num_experts", moe.experts);
  j.set("num_experts_per_tok", moe.choices);
  write_aux_loss(value, kAuxLoss, j);
  return j;
}

FamilyTensors tensors(const DecoderValue& value) { return expert_tensors(value, {}); }

constexpr DecoderFamily::Key kKeys[] = {{"--moe-ffn-hidden-size", "intermediate_size"},
                                        {"--clip-qkv", "clip_qkv"}};

}  // namespace
}  // namespace olmoe

const DecoderFamily kOlmoe = {.name = "olmoe",
                              .models = "OLMoE 1B-7B",
                              .read = olmoe::read,
                              .write = olmoe::write,
                              .tensors = olmoe::tensors,
                              .defaults = olmoe::kDefaults,
                              .aliases = olmoe::kAliases,
                              .keys = olmoe::kKeys};

}  // namespace megatron::models
