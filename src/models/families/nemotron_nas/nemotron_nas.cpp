// Llama-Nemotron 49B, 51B, 253B (Bercovich et al. 2024, 2025): Llama whose layers differ: heads
// that share keys, widths of MLPs, blocks without attention or MLP, or with one matrix in their
// place.
#include "base/error.h"
#include "models/decoder/heterogeneous.h"
#include "models/families/all.h"
#include "models/families/config_json.h"

namespace megatron::models {
namespace nemotron_nas {

constexpr std::string_view kDefaults = R"({
  "hidden_act": "silu", "max_position_embeddings": 2048, "initializer_range": 0.02,
  "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "rope_theta": 10000.0})";

DecoderValue read(const Json& given) {
  const Json* blocks = present(given, "block_configs");
  MG_CHECK(blocks != nullptr, "config.json has no 'block_configs'");
  refuse_unless(given, "attention_bias", false);
  refuse_unless(given, "mlp_bias", false);
  Json j = given;  // each block has its own values of these keys
  j.set("num_key_value_heads", Json());
  j.set("intermediate_size", 1);
  DecoderValue value = read_common(j);
  apply_blocks(*blocks, "config.json, block_configs", value);
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common(value);
  const auto kind = [](bool no_op, bool linear) {
    return Json(Json::Object{{"no_op", no_op}, {"replace_with_linear", linear}});
  };
  Json::Array blocks;
  for (const LayerValue& layer : value.layers) {
    Json attention = kind(std::holds_alternative<NoOp>(layer.mixer),
                          std::holds_alternative<LinearConfig>(layer.mixer));
    Json ffn = kind(std::holds_alternative<NoOp>(layer.feed_forward),
                    std::holds_alternative<LinearConfig>(layer.feed_forward));
    const nn::AttentionConfig* a = layer.attention();
    const nn::MlpConfig* mlp = layer.mlp();
    attention.set("n_heads_in_group", a == nullptr ? Json() : Json(a->heads / a->kv_heads));
    // The width is 2/3 of this times the hidden size, rounded up to a multiple of 256.
    ffn.set("ffn_mult", mlp == nullptr ? Json()
                                       : Json(1.5 * static_cast<double>(mlp->ffn) /
                                              static_cast<double>(value.hidden_size)));
    blocks.emplace_back(Json::Object{{"attention", std::move(attention)}, {"ffn", std::move(ffn)}});
  }
  j.set("architectures", Json::Array{"DeciLMForCausalLM"});
  j.set("block_configs", std::move(blocks));
  j.set("intermediate_size", Json());
  j.set("num_key_value_heads", Json());
  return j;
}

FamilyTensors tensors(const DecoderValue& value) {
  FamilyTensors map = llama_tensors(value);
  map.layer.push_back({"attention.linear", "self_attn.linear_attn"});
  map.layer.push_back({"mlp.linear", "mlp.linear_mlp"});
  return map;
}

}  // namespace nemotron_nas

const DecoderFamily kNemotronNas = {.name = "nemotron-nas",
                                    .models = "Llama-Nemotron Super, Ultra",
                                    .read = nemotron_nas::read,
                                    .write = nemotron_nas::write,
                                    .tensors = nemotron_nas::tensors,
                                    .defaults = nemotron_nas::kDefaults};

}  // namespace megatron::models
