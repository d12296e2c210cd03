// Cohere Command R7B (Cohere 2025): attention and MLP in parallel after one LayerNorm without a
// bias; rotary positions, interleaved, in layers with a window only; scaled logits.
#include "models/families/all.h"
#include "models/families/config_json.h"
#include "models/families/rotary_json.h"

namespace megatron::models {
namespace cohere2 {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528, "num_hidden_layers": 40,
  "num_attention_heads": 64, "hidden_act": "silu", "max_position_embeddings": 8192,
  "initializer_range": 0.02, "layer_norm_eps": 1e-5, "logit_scale": 0.0625,
  "tie_word_embeddings": true, "rope_theta": 10000.0, "attention_bias": false,
  "attention_dropout": 0.0, "sliding_window": 4096, "sliding_window_pattern": 4})";

constexpr CommonForm kForm{
    .epsilon_key = "layer_norm_eps", .norm = nn::Normalization::layer_norm, .attention_bias = true};

DecoderValue read(const Json& j) {
  DecoderValue value = read_common(j, kForm);
  value.rotary["default"].interleaved = true;
  value.logits_scale = number(j, "logit_scale");
  value.final_norm.bias = false;
  const int64_t pattern = integer(j, "sliding_window_pattern");
  read_windows(j, value, [&](int64_t layer) { return (layer + 1) % pattern != 0; });
  for (LayerValue& layer : value.layers) {
    layer.order = LayerValue::Order::parallel_one_norm;
    layer.norm.bias = false;
    if (layer.attention()->window == 0) layer.attention()->rotary.clear();
  }
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common(value, kForm);
  const auto rotary = value.rotary.find("default");
  if (rotary != value.rotary.end()) j.set("rope_parameters", write_rotary(rotary->second));
  j.set("architectures", Json::Array{"Cohere2ForCausalLM"});
  j.set("logit_scale", value.logits_scale);
  write_windows(value, j);
  return j;
}

FamilyTensors tensors(const DecoderValue& value) {
  return llama_tensors(value, {{"attention_norm", "input_layernorm"}});
}

constexpr DecoderFamily::Key kKeys[] = {{"--norm-epsilon", "layer_norm_eps"},
                                        {"--output-multiplier", "logit_scale"}};

}  // namespace cohere2

const DecoderFamily kCohere2 = {.name = "cohere2",
                                .models = "Command R7B, Command A",
                                .read = cohere2::read,
                                .write = cohere2::write,
                                .tensors = cohere2::tensors,
                                .defaults = cohere2::kDefaults,
                                .keys = cohere2::kKeys};

}  // namespace megatron::models
