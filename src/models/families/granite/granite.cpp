// Granite 3 (Granite Team 2024): Llama with multipliers of embeddings, residuals, scores and
// logits.
#include <cmath>

#include "base/error.h"
#include "models/families/all.h"
#include "models/families/config_json.h"

namespace megatron::models {
namespace granite {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
  "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048,
  "initializer_range": 0.02, "rms_norm_eps": 1e-6, "tie_word_embeddings": false,
  "rope_theta": 10000.0, "attention_bias": false, "attention_dropout": 0.0, "mlp_bias": false,
  "embedding_multiplier": 1.0, "logits_scaling": 1.0, "residual_multiplier": 1.0,
  "attention_multiplier": 1.0})";

constexpr CommonForm kForm{.attention_bias = true, .mlp_bias = true};

DecoderValue read(const Json& j) {
  DecoderValue value = read_common(j, kForm);
  const double logits = number(j, "logits_scaling");
  MG_CHECK(logits != 0, "config.json has logits_scaling = 0; logits are divided by it");
  const double scale = positive(j, "attention_multiplier");
  value.embedding_scale = number(j, "embedding_multiplier");
  value.logits_scale = 1 / logits;
  for (LayerValue& layer : value.layers) {
    layer.residual_multiplier = number(j, "residual_multiplier");
    set_score_scale(*layer.attention(), scale);
  }
  return value;
}

// The number whose inverse is the scale: a whole number, or else the rounded 1 / scale or a
// neighbouring double.
double divisor(double scale) {
  const double inverse = 1 / scale;
  for (const double tried : {std::round(inverse), inverse, std::nextafter(inverse, 0),
                             std::nextafter(inverse, INFINITY)})
    if (1 / tried == scale) return tried;
  return inverse;
}

Json write(const DecoderValue& value) {
  Json j = write_common(value, kForm);
  j.set("architectures", Json::Array{"GraniteForCausalLM"});
  j.set("attention_multiplier", value.first_attention()->score_scale());
  j.set("embedding_multiplier", value.embedding_scale);
  j.set("logits_scaling", divisor(value.logits_scale));
  j.set("residual_multiplier", value.layers[0].residual_multiplier);
  return j;
}

constexpr DecoderFamily::Key kKeys[] = {{"--output-multiplier", "logits_scaling"}};

}  // namespace granite

const DecoderFamily kGranite = {.name = "granite",
                                .models = "Granite 3 (dense)",
                                .read = granite::read,
                                .write = granite::write,
                                .tensors = llama_tensors,
                                .defaults = granite::kDefaults,
                                .keys = granite::kKeys};

}  // namespace megatron::models
