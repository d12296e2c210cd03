// GPT-NeoX and Pythia (Black et al. 2022; Biderman et al. 2023): LayerNorm, biases, a part of each
// head rotated, attention and MLP in parallel with a norm each.
#include "models/families/all.h"
#include "models/families/config_json.h"

namespace megatron::models {
namespace gpt_neox {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
  "intermediate_size": 24576, "hidden_act": "gelu", "attention_dropout": 0.0,
  "hidden_dropout": 0.0, "max_position_embeddings": 2048, "initializer_range": 0.02,
  "layer_norm_eps": 1e-5, "tie_word_embeddings": false, "use_parallel_residual": true,
  "rotary_emb_base": 10000.0, "rotary_pct": 0.25, "attention_bias": true})";

constexpr CommonForm kForm{.epsilon_key = "layer_norm_eps",
                           .norm = nn::Normalization::layer_norm,
                           .gated = false,
                           .partial_rotary = true,
                           .attention_bias = true};

DecoderValue read(const Json& given) {
  Json j = given;  // a copy with these keys under the names of other families
  j.set("partial_rotary_factor", j["rotary_pct"]);
  j.set("rope_theta", j["rotary_emb_base"]);
  refuse_unless(j, "is_decoder", false);
  const int64_t heads = integer(j, "num_attention_heads");
  refuse_unless(j, "num_key_value_heads", heads);
  refuse_unless(j, "head_dim", integer(j, "hidden_size") / heads);
  DecoderValue value = read_common(j, kForm);
  value.hidden_dropout = number(j, "hidden_dropout");
  const bool parallel = boolean(j, "use_parallel_residual");
  for (LayerValue& layer : value.layers) {
    layer.order = parallel ? LayerValue::Order::parallel : LayerValue::Order::sequential;
    layer.mlp()->bias = true;
  }
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common(value, kForm);
  std::erase_if(j.as_object(), [](const Json::Member& member) {
    return member.first == "num_key_value_heads" || member.first == "head_dim";
  });
  j.set("architectures", Json::Array{"GPTNeoXForCausalLM"});
  j.set("hidden_dropout", value.hidden_dropout);
  j.set("use_parallel_residual", value.layers[0].order == LayerValue::Order::parallel);
  return j;
}

FamilyTensors tensors(const DecoderValue&) {
  return {.layer_prefix = "gpt_neox.layers.*.",
          .outside = {{"embedding", "gpt_neox.embed_in"},
                      {"final_norm", "gpt_neox.final_layer_norm"},
                      {"output", "embed_out"}},
          .layer = {{"attention_norm", "input_layernorm"},
                    {"attention.qkv", "attention.query_key_value", Take::grouped},
                    {"attention.output", "attention.dense"},
                    {"mlp_norm", "post_attention_layernorm"},
                    {"mlp.up", "mlp.dense_h_to_4h"},
                    {"mlp.down", "mlp.dense_4h_to_h"}}};
}

constexpr std::string_view kBuffers[] = {"layers.*.attention.bias"};
constexpr DecoderFamily::Key kKeys[] = {{"--norm-epsilon", "layer_norm_eps"}};
constexpr DecoderFamily::OlderKey kOlderKeys[] = {{"partial_rotary_factor", "rotary_pct"},
                                                  {"rope_theta", "rotary_emb_base"}};

}  // namespace gpt_neox

const DecoderFamily kGptNeox = {.name = "gpt_neox",
                                .models = "GPT-NeoX 20B, Pythia",
                                .read = gpt_neox::read,
                                .write = gpt_neox::write,
                                .tensors = gpt_neox::tensors,
                                .defaults = gpt_neox::kDefaults,
                                .keys = gpt_neox::kKeys,
                                .older_keys = gpt_neox::kOlderKeys,
                                .buffers = gpt_neox::kBuffers,
                                .score_class = "GPTNeoXForSequenceClassification",
                                .base_prefix = "gpt_neox."};

}  // namespace megatron::models
