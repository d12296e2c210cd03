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
constexpr StateSpaceKeys kKeysOfSpace{.heads = "mamba_n_heads",
                                      .head_size = "mamba_d_head",
                                      .groups = "mamba_n_groups",
                                      .states = "mamba_d_state",
                                      .conv_width = "mamba_d_conv",
                                      .conv_bias = "mamba_conv_bias"};
constexpr std::string_view kAttention = "attn_layer_indices";

nn::StateSpaceConfig read_space(Json j, const DecoderValue& value) {
  const int64_t width = integer(j, "mamba_expand") * value.hidden_size,
                heads = integer(j, "mamba_n_heads");
  MG_CHECK(width % heads == 0,
           "config.json has mamba_expand * hidden_size = {} and mamba_n_heads = {}, which does not "
           "divide it",
           width, heads);
  if (const Json* size = present(j, "mamba_d_head");
      size->is_string() && size->as_string() == "auto")
    j.set("mamba_d_head", width / heads);
  nn::StateSpaceConfig space = read_state_space(j, kKeysOfSpace, value.final_norm.epsilon);
  space.bias = space.output_bias = boolean(j, "mamba_proj_bias");
  read_step_limits(j, space);
  MG_CHECK(space.width() == width,
           "config.json has mamba_n_heads = {} and mamba_d_head = {}; their product must be "
           "mamba_expand * hidden_size = {}",
           space.heads, space.head_size, width);
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
  write_state_space(*space, kKeysOfSpace, j);
  write_step_limits(*space, j);
  return j;
}

constexpr DecoderFamily::Key kKeys[] = {{"--mamba-num-heads", "mamba_n_heads"},
                                        {"--mamba-head-dim", "mamba_d_head"},
                                        {"--mamba-num-groups", "mamba_n_groups"},
                                        {"--mamba-state-dim", "mamba_d_state"}};

}  // namespace bamba

const DecoderFamily kBamba = {.name = "bamba",
                              .models = "Bamba",
                              .read = bamba::read,
                              .write = bamba::write,
                              .tensors = hybrid_tensors,
                              .defaults = bamba::kDefaults,
                              .keys = bamba::kKeys};

}  // namespace megatron::models
