// Falcon 7B, 40B, 180B (Almazrouei et al. 2023): attention and MLP in parallel, after one LayerNorm
// or two; queries, keys and values fused, grouped by key head.
#include "base/error.h"
#include "models/families/all.h"
#include "models/families/config_json.h"

namespace megatron::models {
namespace falcon {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
  "activation": "gelu", "layer_norm_epsilon": 1e-5, "initializer_range": 0.02,
  "hidden_dropout": 0.0, "attention_dropout": 0.0, "alibi": false,
  "new_decoder_architecture": false, "multi_query": true, "parallel_attn": true, "bias": false,
  "max_position_embeddings": 2048, "rope_theta": 10000.0, "tie_word_embeddings": true})";

constexpr DecoderFamily::Alias kAliases[] = {{"n_layer", "num_hidden_layers"},
                                             {"n_head", "num_attention_heads"},
                                             {"n_head_kv", "num_kv_heads"},
                                             {"n_embed", "hidden_size"}};
constexpr CommonForm kForm{.activation_key = "activation",
                           .epsilon_key = "layer_norm_epsilon",
                           .norm = nn::Normalization::layer_norm,
                           .gated = false};

DecoderValue read(const Json& given) {
  refuse_unless(given, "alibi", false);
  Json j = given;  // keys are renamed to those of other families
  const bool grouped = boolean(j, "new_decoder_architecture");
  const int64_t heads = integer(j, "num_attention_heads");
  j.set("num_key_value_heads", grouped                     ? integer(j, "num_kv_heads", heads)
                               : boolean(j, "multi_query") ? 1
                                                           : heads);
  j.set("intermediate_size", integer(j, "ffn_hidden_size", 4 * integer(j, "hidden_size")));
  j.set("head_dim", Json());
  DecoderValue value = read_common(j, kForm);
  value.hidden_dropout = number(j, "hidden_dropout");
  const bool bias = boolean(j, "bias"), parallel = boolean(j, "parallel_attn");
  const int64_t norms = integer(j, "num_ln_in_parallel_attn", grouped ? 2 : 1);
  MG_CHECK(norms == 1 || (norms == 2 && grouped),
           "config.json has num_ln_in_parallel_attn = {}; supported: 1, or 2 with "
           "new_decoder_architecture",
           norms);
  if (grouped) refuse_unless(j, "parallel_attn", true);
  for (LayerValue& layer : value.layers) {
    if (parallel)
      layer.order = norms == 2 ? LayerValue::Order::parallel : LayerValue::Order::parallel_one_norm;
    layer.attention()->qkv_bias = layer.attention()->output_bias = bias;
    layer.mlp()->bias = bias;
  }
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common(value, kForm);
  const Json ffn = j["intermediate_size"], kv_heads = j["num_key_value_heads"];
  std::erase_if(j.as_object(), [](const Json::Member& member) {
    return member.first == "num_key_value_heads" || member.first == "head_dim" ||
           member.first == "intermediate_size";
  });
  const LayerValue::Order order = value.layers[0].order;
  const bool grouped =
      order == LayerValue::Order::parallel ||
      (kv_heads.as_integer() > 1 && kv_heads.as_integer() < value.first_attention()->heads);
  j.set("alibi", false);
  j.set("architectures", Json::Array{"FalconForCausalLM"});
  j.set("bias", value.first_mlp()->bias);
  j.set("ffn_hidden_size", ffn);
  j.set("hidden_dropout", value.hidden_dropout);
  j.set("multi_query", grouped || kv_heads.as_integer() == 1);
  j.set("new_decoder_architecture", grouped);
  j.set("num_kv_heads", kv_heads);
  j.set("num_ln_in_parallel_attn", order == LayerValue::Order::parallel ? 2 : 1);
  j.set("parallel_attn", order != LayerValue::Order::sequential);
  return j;
}

FamilyTensors tensors(const DecoderValue& value) {
  const bool two = !value.layers.empty() && value.layers[0].order == LayerValue::Order::parallel;
  return {.layer_prefix = "transformer.h.*.",
          .outside = {{"embedding", "transformer.word_embeddings"},
                      {"final_norm", "transformer.ln_f"},
                      {"output", "lm_head"}},
          .layer = {{"attention_norm", two ? "ln_attn" : "input_layernorm"},
                    {"attention.qkv", "self_attention.query_key_value", Take::grouped},
                    {"attention.output", "self_attention.dense"},
                    {"mlp_norm", two ? "ln_mlp" : "post_attention_layernorm"},
                    {"mlp.up", "mlp.dense_h_to_4h"},
                    {"mlp.down", "mlp.dense_4h_to_h"}}};
}

constexpr DecoderFamily::Key kKeys[] = {{"--norm-epsilon", "layer_norm_epsilon"},
                                        {"--num-query-groups", "num_kv_heads"},
                                        {"--ffn-hidden-size", "ffn_hidden_size"}};

}  // namespace falcon

const DecoderFamily kFalcon = {.name = "falcon",
                               .models = "Falcon 7B, 40B, 180B",
                               .read = falcon::read,
                               .write = falcon::write,
                               .tensors = falcon::tensors,
                               .defaults = falcon::kDefaults,
                               .aliases = falcon::kAliases,
                               .keys = falcon::kKeys,
                               .score_class = "FalconForSequenceClassification",
                               .base_prefix = "transformer."};

}  // namespace megatron::models
