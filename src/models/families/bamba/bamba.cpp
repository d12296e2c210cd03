// Bamba (Ganti et al. 2025): state spaces or attention, each with a gated MLP.
#include <algorithm>

#include "base/error.h"
#include "models/families/all.h"
#include "models/families/rotary_json.h"
#include "models/families/state_space_json.h"

namespace megatron::models {
namespace bamba {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 128000, "tie_word_embeddings": false, "hidden_size": 4096,
  "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
  "num_key_value_heads": 8, "hidden_act": "silu", "initializer_range": 0.02,
  "rms_norm_eps": 1e-5, "max_position_embeddings": 262144, "attention_dropout": 0.0,
  "mamba_n_heads": 128, "mamba_d_head": "auto", "mamba_n_groups": 1, "mamba_d_state": 256,
  "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": true, "mamba_proj_bias": false,
  "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "attention_bias": false,
  "mlp_bias": false})";

constexpr CommonForm kForm{.partial_rotary = true, .attention_bias = true, .mlp_bias = true};
constexpr std::string_view kAttention = "attn_layer_indices";

nn::StateSpaceConfig read_space(const Json& j, const DecoderValue& value) {
  nn::StateSpaceConfig space =
      read_bamba_space(j, integer(j, "mamba_expand") * value.hidden_size,
                       "mamba_expand * hidden_size", value.final_norm.epsilon);
  space.bias = space.output_bias = boolean(j, "mamba_proj_bias");
  return space;
}

DecoderValue read(const Json& j) {
  DecoderValue value = read_common(j, kForm);
  const nn::StateSpaceConfig space = read_space(j, value);
  std::vector<bool> attends(value.layers.size());
  if (const Json* indices = present(j, kAttention)) {
    const auto good = [&](const Json& index) {
      return index.is_integer() && index.as_integer() >= 0 &&
             index.as_integer() < value.num_layers();
    };
    MG_CHECK(indices->is_array() && std::ranges::all_of(indices->as_array(), good),
             "config.json has {} = {}; it must list layers from 0 to {}", kAttention,
             indices->dump(), value.num_layers() - 1);
    for (const Json& index : indices->as_array())
      attends[static_cast<size_t>(index.as_integer())] = true;
  }
  MG_CHECK(
      std::ranges::find(attends, false) != attends.end(),
      "config.json lists all {} layers in {}; a bamba has a state space in some layer: use the "
      "model_type of a model with attention alone",
      attends.size(), kAttention);
  for (size_t i = 0; i < attends.size(); ++i)
    if (!attends[i]) value.layers[i].mixer = space;
  return value;
}

Json write(const DecoderValue& value) {
  const nn::StateSpaceConfig* space = value.first_state_space();
  MG_CHECK(space != nullptr, "a model without state spaces");
  DecoderValue common = value;
  if (value.first_attention() == nullptr)  // no layer has these heads
    common.layers[0].mixer = nn::AttentionConfig{
        .heads = 1, .kv_heads = 1, .head_size = 2 * value.hidden_size, .rotary = "default"};
  Json j = write_common(common, kForm);
  Json::Array attention;
  for (int64_t i = 0; i < value.num_layers(); ++i)
    if (value.layer(i).attention() != nullptr) attention.emplace_back(i);
  j.set("architectures", Json::Array{"BambaForCausalLM"});
  j.set(kAttention, std::move(attention));
  j.set("mamba_expand", expansion(*space, value));
  j.set("mamba_proj_bias", space->bias);
  write_state_space(*space, kBambaKeys, j);
  write_step_limits(*space, j);
  return j;
}

constexpr auto kKeys = state_space_flags(kBambaKeys);

}  // namespace bamba

const DecoderFamily kBamba = {.name = "bamba",
                              .models = "Bamba",
                              .read = bamba::read,
                              .write = bamba::write,
                              .tensors = hybrid_tensors,
                              .defaults = bamba::kDefaults,
                              .keys = bamba::kKeys};

}  // namespace megatron::models
