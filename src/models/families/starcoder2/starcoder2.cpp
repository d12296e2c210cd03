// StarCoder2 (Lozhkov et al. 2024): LayerNorm and biases everywhere, GELU (tanh form) without a
// gate, a window.
#include "base/error.h"
#include "models/families/all.h"
#include "models/families/config_json.h"

namespace megatron::models {
namespace starcoder2 {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 30,
  "num_attention_heads": 24, "num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh",
  "max_position_embeddings": 4096, "initializer_range": 0.018042, "norm_epsilon": 1e-5,
  "rope_theta": 10000.0, "attention_dropout": 0.0, "residual_dropout": 0.0,
  "embedding_dropout": 0.0, "use_bias": true, "tie_word_embeddings": true})";

constexpr CommonForm kForm{
    .epsilon_key = "norm_epsilon", .norm = nn::Normalization::layer_norm, .gated = false};

DecoderValue read(const Json& j) {
  DecoderValue value = read_common(j, kForm);
  const bool bias = boolean(j, "use_bias");
  value.hidden_dropout = number(j, "residual_dropout");
  const double embedding_dropout = number(j, "embedding_dropout");
  MG_CHECK(embedding_dropout == value.hidden_dropout,
           "config.json has embedding_dropout = {} and residual_dropout = {}; both are the same "
           "dropout here: make them equal",
           embedding_dropout, value.hidden_dropout);
  for (LayerValue& layer : value.layers) {
    layer.attention()->qkv_bias = layer.attention()->output_bias = bias;
    layer.mlp()->bias = bias;
  }
  read_window(j, value);
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common(value, kForm);
  j.set("architectures", Json::Array{"Starcoder2ForCausalLM"});
  j.set("embedding_dropout", value.hidden_dropout);
  j.set("residual_dropout", value.hidden_dropout);
  j.set("sliding_window", sliding_window(value));
  j.set("use_bias", value.first_mlp()->bias);
  return j;
}

FamilyTensors tensors(const DecoderValue& value) {
  FamilyTensors map = llama_tensors(value);
  for (TensorName& row : map.layer) {
    if (row.ours == "mlp.up") row.theirs = "mlp.c_fc";
    if (row.ours == "mlp.down") row.theirs = "mlp.c_proj";
  }
  return map;
}

constexpr DecoderFamily::Key kKeys[] = {{"--norm-epsilon", "norm_epsilon"},
                                        {"--hidden-dropout", "residual_dropout"}};

}  // namespace starcoder2

const DecoderFamily kStarcoder2 = {.name = "starcoder2",
                                   .models = "StarCoder2",
                                   .read = starcoder2::read,
                                   .write = starcoder2::write,
                                   .tensors = starcoder2::tensors,
                                   .defaults = starcoder2::kDefaults,
                                   .keys = starcoder2::kKeys,
                                   .score_class = "Starcoder2ForSequenceClassification"};

}  // namespace megatron::models
