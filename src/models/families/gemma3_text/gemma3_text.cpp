// Gemma 3, its text model (Gemma Team 2025): Gemma 2 with norms of queries and keys in place of
// soft caps, and rotary positions of their own for layers with a window.
#include "base/error.h"
#include "base/log.h"
#include "models/families/all.h"
#include "models/families/config_json.h"
#include "models/families/rotary_json.h"

namespace megatron::models {
namespace gemma3_text {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
  "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
  "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 131072,
  "initializer_range": 0.02, "rms_norm_eps": 1e-6, "tie_word_embeddings": true,
  "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "attention_bias": false,
  "attention_dropout": 0.0, "query_pre_attn_scalar": 256, "sliding_window": 4096,
  "sliding_window_pattern": 6})";

constexpr CommonForm kForm{
    .activation_key = "hidden_activation", .attention_bias = true, .qk_norm = nn::QkNorm::head};

// rope_parameters {"full_attention": {...}, "sliding_attention": {...}}; or rope_theta and
// rope_local_base_freq, and rope_scaling, whose members replace those of full_attention. As in
// transformers, a flat rope_parameters, as other types have it, is ignored; `truncate` is read
// outside of the blocks, and the original context only within them.
void read_rotaries(const Json& given, DecoderValue& value) {
  Json j = given;
  j.set("original_max_position_embeddings", Json());
  const Json *both = present(j, "rope_parameters"), *scaling = present(j, "rope_scaling");
  MG_CHECK(both == nullptr || both->is_object(),
           "config.json has rope_parameters = {}; it must be an object", both->dump());
  const auto block = [&](std::string_view key) {
    const Json* there = both == nullptr ? nullptr : present(*both, key);
    Json members = there == nullptr ? Json(Json::Object{{"rope_type", "default"}}) : *there;
    MG_CHECK(members.is_object(), "config.json has rope_parameters.{} = {}; it must be an object",
             key, members.dump());
    const Json* truncate = both == nullptr ? nullptr : both->find("truncate");
    members.set("truncate", truncate == nullptr ? Json(true) : *truncate);
    return members;
  };
  Json global = block("full_attention");
  if (scaling != nullptr) {
    MG_CHECK(scaling->is_object() && (both == nullptr || both->contains("full_attention")),
             "config.json has rope_scaling = {}, which applies to rope_parameters.full_attention, "
             "but rope_parameters = {}",
             scaling->dump(), both == nullptr ? "null" : both->dump());
    for (const auto& [key, member] : scaling->as_object()) global.set(key, member);
  }
  value.rotary["global"] = read_rotary_block(
      j, global, scaling != nullptr ? "rope_scaling" : "rope_parameters.full_attention");
  j.set("rope_theta", Json(j["rope_local_base_freq"]));
  value.rotary["local"] =
      read_rotary_block(j, block("sliding_attention"), "rope_parameters.sliding_attention");
  for (LayerValue& layer : value.layers)
    layer.attention()->rotary = layer.attention()->window > 0 ? "local" : "global";
}

DecoderValue read(const Json& j) {
  refuse_unless(j, "use_bidirectional_attention", false);
  Json plain = j;
  plain.set("rope_parameters", Json());
  plain.set("rope_scaling", Json());
  DecoderValue value = read_common(plain, kForm);
  value.rotary.clear();
  read_gemma(j, value);
  if (number(j, "attn_logit_softcapping", 0) != 0)
    log::warning(
        "config.json has attn_logit_softcapping = {}, which is ignored, as in transformers: the "
        "attention of a gemma3_text has no soft cap",
        number(j, "attn_logit_softcapping"));
  value.logits_soft_cap = number(j, "final_logit_softcapping", 0);
  const int64_t pattern = integer(j, "sliding_window_pattern");
  read_windows(j, value, [&](int64_t layer) { return (layer + 1) % pattern != 0; });
  read_rotaries(j, value);
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common(value, kForm);
  const auto table = [&](const std::string& name) {
    const auto found = value.rotary.find(name);
    return write_rotary(found == value.rotary.end() ? nn::RotaryConfig{} : found->second);
  };
  j.set("architectures", Json::Array{"Gemma3ForCausalLM"});
  j.set("attn_logit_softcapping", Json());
  j.set("final_logit_softcapping",
        value.logits_soft_cap > 0 ? Json(value.logits_soft_cap) : Json());
  j.set("rope_parameters",
        Json::Object{{"full_attention", table("global")}, {"sliding_attention", table("local")}});
  write_windows(value, j);
  write_gemma(value, j);
  return j;
}

}  // namespace gemma3_text

const DecoderFamily kGemma3Text = {.name = "gemma3_text",
                                   .models = "Gemma 3 (text)",
                                   .read = gemma3_text::read,
                                   .write = gemma3_text::write,
                                   .tensors = gemma_tensors,
                                   .defaults = gemma3_text::kDefaults,
                                   .score_class = "Gemma3TextForSequenceClassification"};

}  // namespace megatron::models
