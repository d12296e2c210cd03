// gpt-oss (OpenAI 2025): experts with biases and a clamped SwiGLU, attention with learned sinks and
// windows in every other layer, YaRN positions.
#include "models/families/all.h"
#include "models/families/experts_json.h"

namespace megatron::models {
namespace gpt_oss {

constexpr std::string_view kDefaults = R"({
  "num_hidden_layers": 36, "num_local_experts": 128, "vocab_size": 201088, "hidden_size": 2880,
  "intermediate_size": 2880, "head_dim": 64, "num_attention_heads": 64, "num_key_value_heads": 8,
  "sliding_window": 128, "tie_word_embeddings": false, "hidden_act": "silu",
  "initializer_range": 0.02, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
  "rope_theta": 150000.0, "attention_dropout": 0.0, "num_experts_per_tok": 4,
  "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "router_aux_loss_coef": 0.001,
  "output_router_logits": false, "attention_bias": true,
  "rope_parameters": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                      "truncate": false, "original_max_position_embeddings": 4096}})";

constexpr DecoderFamily::Alias kAliases[] = {{"num_experts", "num_local_experts"}};

constexpr CommonForm kForm{.attention_bias = true};

DecoderValue read(const Json& j) {
  refuse_unless(j, "hidden_act", "silu");
  refuse_unless(j, "swiglu_alpha", 1.702);
  DecoderValue value = read_common(j, kForm);
  read_aux_loss(j, value);
  for (LayerValue& layer : value.layers) layer.attention()->sinks = nn::Sinks::learned;
  read_windows(j, value, [](int64_t layer) { return layer % 2 == 0; });
  const nn::MoeConfig experts{.experts = integer(j, "num_local_experts"),
                              .choices = integer(j, "num_experts_per_tok"),
                              .router_bias = true,
                              .expert = {.ffn = value.layers[0].mlp()->ffn,
                                         .activation = kernels::Activation::quick_gelu,
                                         .gated = true,
                                         .bias = true,
                                         .clamp = number(j, "swiglu_limit"),
                                         .up_offset = 1}};
  set_experts(value, experts, [](int64_t) { return true; });
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common_of_experts(value, kForm);
  const nn::MoeConfig& moe = *value.first_moe();
  j.set("architectures", Json::Array{"GptOssForCausalLM"});
  j.set("hidden_act", "silu");
  j.set("num_experts_per_tok", moe.choices);
  j.set("num_local_experts", moe.experts);
  write_windows(value, j);
  j.set("swiglu_alpha", 1.702);
  j.set("swiglu_limit", moe.expert.clamp);
  write_aux_loss(value, j);
  return j;
}

FamilyTensors tensors(const DecoderValue& value) {
  FamilyTensors map = llama_tensors(value, {{"attention_norm", "input_layernorm"},
                                            {"mlp_norm", "post_attention_layernorm"},
                                            {"attention.sinks", "self_attn.sinks"},
                                            {"mlp.router", "mlp.router"}});
  map.layer.push_back(
      {"mlp.experts.up.weight", "mlp.experts.gate_up_proj", Take::experts_interleaved});
  map.layer.push_back(
      {"mlp.experts.up.bias", "mlp.experts.gate_up_proj_bias", Take::experts_interleaved});
  map.layer.push_back(
      {"mlp.experts.down.weight", "mlp.experts.down_proj", Take::experts_stored_in_out});
  map.layer.push_back(
      {"mlp.experts.down.bias", "mlp.experts.down_proj_bias", Take::experts_stored_in_out});
  return map;
}

constexpr DecoderFamily::Key kKeys[] = {{"--activation-func-clamp-value", "swiglu_limit"},
                                        {"--moe-ffn-hidden-size", "intermediate_size"},
                                        {"--num-experts", "num_local_experts"}};

}  // namespace gpt_oss

const DecoderFamily kGptOss = {.name = "gpt_oss",
                               .models = "gpt-oss-20b, gpt-oss-120b",
                               .read = gpt_oss::read,
                               .write = gpt_oss::write,
                               .tensors = gpt_oss::tensors,
                               .defaults = gpt_oss::kDefaults,
                               .aliases = gpt_oss::kAliases,
                               .keys = gpt_oss::kKeys,
                               .score_class = "GptOssForSequenceClassification"};

}  // namespace megatron::models
