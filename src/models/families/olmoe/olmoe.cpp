// OLMoE (Muennighoff et al. 2024): experts in every layer, queries and keys normalised over all
// heads.
#include "models/families/all.h"
#include "models/families/experts_json.h"

namespace megatron::models {
namespace olmoe {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 16,
  "num_attention_heads": 16, "hidden_act": "silu", "max_position_embeddings": 4096,
  "initializer_range": 0.02, "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
  "rope_theta": 10000.0, "attention_bias": false, "attention_dropout": 0.0,
  "num_experts_per_tok": 8, "num_experts": 64, "output_router_logits": false,
  "router_aux_loss_coef": 0.01, "norm_topk_prob": false})";

constexpr DecoderFamily::Alias kAliases[] = {{"num_local_experts", "num_experts"}};

constexpr CommonForm kForm{.attention_bias = true, .qk_norm = nn::QkNorm::full_width};

DecoderValue read(const Json& j) {
  DecoderValue value = read_common(j, kForm);
  read_aux_loss(j, value);
  if (present(j, "clip_qkv") != nullptr)
    for (LayerValue& layer : value.layers) layer.attention()->qkv_clip = number(j, "clip_qkv");
  const nn::MoeConfig experts{.experts = integer(j, "num_experts"),
                              .choices = integer(j, "num_experts_per_tok"),
                              .router = read_softmax_router(j),
                              .expert = *value.layers[0].mlp()};
  set_experts(value, experts, [](int64_t) { return true; });
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common_of_experts(value, kForm);
  const nn::MoeConfig& moe = *value.first_moe();
  const double clip = value.first_attention()->qkv_clip;
  j.set("architectures", Json::Array{"OlmoeForCausalLM"});
  j.set("clip_qkv", clip > 0 ? Json(clip) : Json());
  j.set("norm_topk_prob", normalises(moe));
  j.set("num_experts", moe.experts);
  j.set("num_experts_per_tok", moe.choices);
  write_aux_loss(value, j, 0.01);
  return j;
}

FamilyTensors tensors(const DecoderValue& value) { return expert_tensors(value, {}); }

constexpr DecoderFamily::Key kKeys[] = {{"--moe-ffn-hidden-size", "intermediate_size"},
                                        {"--clip-qkv", "clip_qkv"}};

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
