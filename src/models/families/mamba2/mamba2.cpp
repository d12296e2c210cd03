// Mamba-2 (Dao & Gu 2024): a state space in every layer, and nothing else.
#include "base/error.h"
#include "models/families/all.h"
#include "models/families/state_space_json.h"

namespace megatron::models {
namespace mamba2 {

constexpr std::string_view kDefaults = R"({
  "num_heads": 128, "head_dim": 64, "vocab_size": 32768, "hidden_size": 4096, "state_size": 128,
  "num_hidden_layers": 64, "layer_norm_epsilon": 1e-5, "expand": 2, "conv_kernel": 4,
  "n_groups": 8, "use_bias": false, "use_conv_bias": true, "hidden_act": "silu",
  "initializer_range": 0.1, "time_step_min": 0.001, "time_step_max": 0.1,
  "time_step_floor": 0.0001, "tie_word_embeddings": false})";

constexpr StateSpaceKeys kKeysOfSpace{.heads = "num_heads",
                                      .head_size = "head_dim",
                                      .groups = "n_groups",
                                      .states = "state_size",
                                      .conv_width = "conv_kernel",
                                      .conv_bias = "use_conv_bias"};
// Not a key of transformers' class, which has no limit.
constexpr std::string_view kContext = "max_position_embeddings";

DecoderValue read(const Json& j) {
  refuse_unless(j, "hidden_act", "silu");
  DecoderValue value;
  const int64_t layers = layer_count(j, "num_hidden_layers");
  value.hidden_size = integer(j, "hidden_size");
  value.vocab_size = integer(j, "vocab_size");
  value.max_position_embeddings = integer(j, kContext, kEndlessContext);
  value.untied = !boolean(j, "tie_word_embeddings");
  value.init_method_std = number(j, "initializer_range");
  const nn::NormConfig norm{.kind = nn::Normalization::rms_norm,
                            .epsilon = positive(j, "layer_norm_epsilon")};
  nn::StateSpaceConfig space = read_state_space(j, kKeysOfSpace, norm.epsilon);
  space.bias = space.output_bias = boolean(j, "use_bias");
  read_step_limits(j, space);
  read_initial_steps(j, space);
  MG_CHECK(space.width() == value.hidden_size * integer(j, "expand"),
           "config.json has num_heads = {}, head_dim = {}, hidden_size = {} and expand = {}; the "
           "product of the first two must be that of the others",
           space.heads, space.head_size, value.hidden_size, integer(j, "expand"));
  value.layers.assign(static_cast<size_t>(layers),
                      {.mixer = space, .feed_forward = NoOp{}, .norm = norm});
  value.final_norm = norm;
  return value;
}

Json write(const DecoderValue& value) {
  const nn::StateSpaceConfig* space = value.first_state_space();
  MG_CHECK(space != nullptr, "a model without state spaces");
  Json j(Json::Object{});
  j.set("architectures", Json::Array{"Mamba2ForCausalLM"});
  j.set("expand", expansion(*space, value));
  j.set("hidden_act", "silu");
  j.set("hidden_size", value.hidden_size);
  j.set("initializer_range", value.init_method_std);
  j.set("layer_norm_epsilon", value.layers[0].norm.epsilon);
  if (value.max_position_embeddings != kEndlessContext)
    j.set(kContext, value.max_position_embeddings);
  j.set("num_hidden_layers", value.num_layers());
  j.set("tie_word_embeddings", !value.untied);
  j.set("use_bias", space->bias);
  j.set("vocab_size", value.vocab_size);
  write_state_space(*space, kKeysOfSpace, j);
  write_step_limits(*space, j);
  write_initial_steps(*space, j);
  return j;
}

FamilyTensors tensors(const DecoderValue&) {
  FamilyTensors map{.layer_prefix = "backbone.layers.*.",
                    .outside = {{"embedding", "backbone.embeddings"},
                                {"final_norm", "backbone.norm_f"},
                                {"output", "lm_head"}},
                    .layer = {{"attention_norm", "norm"}}};
  map.layer.insert(map.layer.end(), mixer_tensors().begin(), mixer_tensors().end());
  return map;
}

constexpr auto kKeys =
    state_space_flags<1>(kKeysOfSpace, {{{"--norm-epsilon", "layer_norm_epsilon"}}});

}  // namespace mamba2

const DecoderFamily kMamba2 = {.name = "mamba2",
                               .models = "Mamba-2, Codestral Mamba",
                               .read = mamba2::read,
                               .write = mamba2::write,
                               .tensors = mamba2::tensors,
                               .defaults = mamba2::kDefaults,
                               .keys = mamba2::kKeys,
                               .base_prefix = "backbone."};

}  // namespace megatron::models
