// Falcon-H1 (Zuo et al. 2025): attention and a state space side by side in every layer, and
// multipliers everywhere.
#include <array>
#include <cmath>

#include "base/error.h"
#include "models/families/all.h"
#include "models/families/rotary_json.h"
#include "models/families/state_space_json.h"

namespace megatron::models {
namespace falcon_h1 {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 128000, "tie_word_embeddings": false, "hidden_size": 4096,
  "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
  "num_key_value_heads": 8, "hidden_act": "silu", "initializer_range": 0.02,
  "rms_norm_eps": 1e-5, "max_position_embeddings": 8192, "attention_dropout": 0.0,
  "mamba_d_ssm": 1024, "mamba_n_heads": 128, "mamba_d_head": "auto", "mamba_n_groups": 1,
  "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": true,
  "mamba_proj_bias": false, "mamba_norm_before_gate": true, "mamba_rms_norm": false,
  "projectors_bias": false, "rope_theta": 10000.0, "lm_head_multiplier": 1.0,
  "embedding_multiplier": 1.0, "mlp_multipliers": [1.0, 1.0], "key_multiplier": 1.0,
  "attention_out_multiplier": 1.0, "attention_in_multiplier": 1.0,
  "ssm_multipliers": [1.0, 1.0, 1.0, 1.0, 1.0], "ssm_in_multiplier": 1.0,
  "ssm_out_multiplier": 1.0, "attention_bias": false, "mlp_bias": false})";

constexpr CommonForm kForm{.attention_bias = true, .mlp_bias = true};
constexpr std::string_view kWidth = "mamba_d_ssm";

std::vector<double> multipliers(const Json& j, std::string_view key, size_t count) {
  const Json& list = *present(j, key);
  std::vector<double> values;
  if (list.is_array())
    for (const Json& value : list.as_array())
      if (value.is_number()) values.push_back(value.as_number());
  MG_CHECK(list.is_array() && values.size() == count && list.as_array().size() == count,
           "config.json has {} = {}; it must be a list of {} numbers", key, list.dump(), count);
  return values;
}

using kernels::GateOrder;

nn::StateSpaceConfig read_space(const Json& j, const DecoderValue& value) {
  const int64_t width = integer(j, kWidth, integer(j, "mamba_expand") * value.hidden_size);
  nn::StateSpaceConfig space = read_bamba_space(j, width, kWidth, value.final_norm.epsilon);
  space.bias = boolean(j, "mamba_proj_bias");
  space.output_bias = boolean(j, "projectors_bias");
  if (!boolean(j, "mamba_rms_norm")) space.order = GateOrder::gate_only;
  else if (boolean(j, "mamba_norm_before_gate")) space.order = GateOrder::norm_first;
  space.multipliers = multipliers(j, "ssm_multipliers", 5);
  if (space.multipliers == std::vector<double>(5, 1)) space.multipliers.clear();
  return space;
}

DecoderValue read(const Json& j) {
  DecoderValue value = read_common(j, kForm);
  nn::AttentionConfig attention = *value.layers[0].attention();
  set_score_scale(
      attention, number(j, "key_multiplier") / std::sqrt(static_cast<double>(attention.head_size)));
  nn::MlpConfig mlp = *value.layers[0].mlp();
  const std::vector<double> of_mlp = multipliers(j, "mlp_multipliers", 2);
  mlp.gate_multiplier = of_mlp[0];
  mlp.output_multiplier = of_mlp[1];
  const HybridConfig hybrid{
      .attention = attention,
      .state_space = read_space(j, value),
      .attention_factors = {number(j, "attention_in_multiplier"),
                            number(j, "attention_out_multiplier")},
      .state_space_factors = {number(j, "ssm_in_multiplier"), number(j, "ssm_out_multiplier")}};
  for (LayerValue& layer : value.layers) {
    layer.mixer = hybrid;
    layer.feed_forward = mlp;
  }
  value.embedding_scale = number(j, "embedding_multiplier");
  value.logits_scale = number(j, "lm_head_multiplier");
  return value;
}

// The factor of keys that gives the scale of scores.
double key_multiplier(const nn::AttentionConfig& a) {
  constexpr double kDigits = 1e12;
  const double root = std::sqrt(static_cast<double>(a.head_size)), factor = a.score_scale() * root;
  for (const double tried : {std::round(factor * kDigits) / kDigits, factor,
                             std::nextafter(factor, 0), std::nextafter(factor, INFINITY)})
    if (tried / root == a.score_scale()) return tried;
  return factor;
}

Json write(const DecoderValue& value) {
  const HybridConfig* hybrid = std::get_if<HybridConfig>(&value.layers[0].mixer);
  const nn::MlpConfig* mlp = value.first_mlp();
  MG_CHECK(hybrid != nullptr && mlp != nullptr,
           "a model whose layers do not have attention in parallel with a state space, and an MLP");
  Json j = write_common(value, kForm);
  const nn::StateSpaceConfig& space = hybrid->state_space;
  j.set("architectures", Json::Array{"FalconH1ForCausalLM"});
  j.set("attention_in_multiplier", hybrid->attention_factors.in);
  j.set("attention_out_multiplier", hybrid->attention_factors.out);
  j.set("embedding_multiplier", value.embedding_scale);
  j.set("key_multiplier", key_multiplier(hybrid->attention));
  j.set("lm_head_multiplier", value.logits_scale);
  j.set(kWidth, space.width());
  j.set("mamba_expand", 2);  // not used, since the width is given
  j.set("mamba_norm_before_gate", space.order == GateOrder::norm_first);
  j.set("mamba_proj_bias", space.bias);
  j.set("mamba_rms_norm", space.order != GateOrder::gate_only);
  j.set("mlp_multipliers", Json::Array{mlp->gate_multiplier, mlp->output_multiplier});
  j.set("projectors_bias", space.output_bias);
  j.set("ssm_in_multiplier", hybrid->state_space_factors.in);
  const std::vector<double> none(5, 1),
      &factors = space.multipliers.empty() ? none : space.multipliers;
  j.set("ssm_multipliers", Json::Array(factors.begin(), factors.end()));
  j.set("ssm_out_multiplier", hybrid->state_space_factors.out);
  write_state_space(space, kBambaKeys, j);
  write_step_limits(space, j);
  return j;
}

constexpr auto kKeys =
    state_space_flags<1>(kBambaKeys, {{{"--output-multiplier", "lm_head_multiplier"}}});

}  // namespace falcon_h1

const DecoderFamily kFalconH1 = {.name = "falcon_h1",
                                 .models = "Falcon-H1",
                                 .read = falcon_h1::read,
                                 .write = falcon_h1::write,
                                 .tensors = hybrid_tensors,
                                 .defaults = falcon_h1::kDefaults,
                                 .keys = falcon_h1::kKeys};

}  // namespace megatron::models
