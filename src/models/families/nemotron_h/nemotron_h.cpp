// Nemotron-H and Nemotron Nano 2 and 3 (Blakeman et al. 2025): each layer is a state space,
// attention without positions, an MLP with squared ReLU, or experts.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "models/families/all.h"
#include "models/families/experts_json.h"
#include "models/families/state_space_json.h"

namespace megatron::models {
namespace nemotron_h {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 131072, "hidden_size": 4096, "tie_word_embeddings": false,
  "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
  "max_position_embeddings": 4096, "attention_dropout": 0.0, "intermediate_size": 21504,
  "mlp_hidden_act": "relu2", "mlp_bias": false, "ssm_state_size": 128, "mamba_num_heads": 128,
  "mamba_head_dim": 64, "mamba_hidden_act": "silu", "n_groups": 8, "conv_kernel": 4,
  "time_step_min": 0.001, "time_step_max": 0.1, "time_step_floor": 0.0001, "use_conv_bias": true,
  "n_routed_experts": 8, "output_router_logits": false, "moe_intermediate_size": 7688,
  "moe_shared_expert_intermediate_size": 7688, "num_experts_per_tok": 2,
  "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "norm_topk_prob": true,
  "num_nextn_predict_layers": 0, "use_bias": false, "initializer_range": 0.02,
  "layer_norm_epsilon": 1e-5})";

constexpr DecoderFamily::Alias kAliases[] = {{"num_local_experts", "n_routed_experts"},
                                             {"layer_types", "layers_block_type"},
                                             {"mamba_n_groups", "n_groups"},
                                             {"mamba_d_conv", "conv_kernel"},
                                             {"mamba_dt_min", "time_step_min"},
                                             {"mamba_dt_max", "time_step_max"},
                                             {"mamba_dt_init_floor", "time_step_floor"},
                                             {"mamba_conv_bias", "use_conv_bias"}};

constexpr StateSpaceKeys kKeysOfSpace{.heads = "mamba_num_heads",
                                      .head_size = "mamba_head_dim",
                                      .groups = "n_groups",
                                      .states = "ssm_state_size",
                                      .conv_width = "conv_kernel",
                                      .conv_bias = "use_conv_bias"};

// A kind of layer: its letter in hybrid_override_pattern, and its names in layers_block_type.
struct LayerKind {
  char letter;
  std::string_view name, older;
};
constexpr std::array kLayerKinds = {LayerKind{'M', "linear_attention", "mamba"},
                                    LayerKind{'*', "full_attention", "attention"},
                                    LayerKind{'-', "mlp", "mlp"}, LayerKind{'E', "moe", "moe"}};
constexpr std::string_view kTypes = "layers_block_type", kPattern = "hybrid_override_pattern",
                           kLayers = "num_hidden_layers";

std::string letters_of_types(const Json& types) {
  MG_CHECK(types.is_array() && !types.as_array().empty(),
           "config.json has {} = {}; it must be a list of layers", kTypes, types.dump());
  std::string letters;
  for (const Json& type : types.as_array()) {
    const auto kind = std::ranges::find_if(kLayerKinds, [&](const LayerKind& k) {
      return type.is_string() && (type.as_string() == k.name || type.as_string() == k.older);
    });
    MG_CHECK(kind != kLayerKinds.end(),
             "config.json has {} in {}; supported: linear_attention, full_attention, mlp, moe",
             type.dump(), kTypes);
    letters += kind->letter;
  }
  return letters;
}

// The letter of each layer.
std::string letters_of(const Json& j) {
  const Json* const types = present(j, kTypes);
  const bool patterned = present(j, kPattern) != nullptr;
  std::string letters = text(j, kPattern, "ME*-");  // as transformers' class
  for (const char letter : letters)
    MG_CHECK(std::ranges::find(kLayerKinds, letter, &LayerKind::letter) != kLayerKinds.end(),
             "config.json has {} = '{}' with '{}'; supported: M, *, -, E", kPattern, letters,
             letter);
  MG_CHECK(!letters.empty(), "config.json has {} = ''; it must have a letter for each layer",
           kPattern);
  if (types != nullptr) {
    const std::string others = letters_of_types(*types);
    MG_CHECK(!patterned || others == letters,
             "config.json has {} = '{}', but {} says '{}'; leave one of the keys out", kPattern,
             letters, kTypes, others);
    letters = others;
  }
  if (present(j, kLayers) != nullptr)
    MG_CHECK(integer(j, kLayers) == std::ssize(letters),
             "config.json has {} = {}, but {} = {} layers in {}; make them equal, or leave {} out",
             kLayers, integer(j, kLayers), letters, letters.size(),
             types != nullptr ? kTypes : kPattern, kLayers);
  return letters;
}

nn::MoeConfig read_experts(const Json& j, const nn::MlpConfig& mlp) {
  MG_CHECK(!mlp.bias,
           "config.json has mlp_bias = true and layers of experts (moe): biases of their shared "
           "expert alone are not supported");
  nn::MoeConfig experts{.experts = integer(j, "n_routed_experts"),
                        .choices = integer(j, "num_experts_per_tok"),
                        .router = read_sigmoid_router(j),
                        .correction_bias = true,
                        .expert = mlp,
                        .latent = integer(j, "moe_latent_size", 0),
                        .shared_ffn = integer(j, "moe_shared_expert_intermediate_size")};
  experts.expert.ffn = integer(j, "moe_intermediate_size");
  return experts;
}

nn::StateSpaceConfig read_space(const Json& j, double epsilon) {
  refuse_unless(j, "mamba_hidden_act", "silu");
  nn::StateSpaceConfig space = read_state_space(j, kKeysOfSpace, epsilon);
  space.bias = space.output_bias = boolean(j, "use_bias");
  // The least step of all; 0 only says so of training.
  space.min_step = number(j, "time_step_min");
  Json initial = j;
  if (space.min_step == 0) initial.set("time_step_min", nn::StateSpaceConfig{}.initial_min_step);
  read_initial_steps(initial, space);
  return space;
}

DecoderValue read(const Json& j) {
  const std::string letters = letters_of(j);
  DecoderValue value;
  value.hidden_size = integer(j, "hidden_size");
  value.vocab_size = integer(j, "vocab_size");
  value.max_position_embeddings = integer(j, "max_position_embeddings");
  value.untied = !boolean(j, "tie_word_embeddings");
  value.init_method_std = number(j, "initializer_range");
  value.attention_dropout = number(j, "attention_dropout");
  value.router.states_router_logits = boolean(j, "output_router_logits");
  refuse_unless(j, "sliding_window", Json());
  value.final_norm = {.kind = nn::Normalization::rms_norm,
                      .epsilon = positive(j, "layer_norm_epsilon")};
  const nn::StateSpaceConfig space = read_space(j, value.final_norm.epsilon);
  nn::AttentionConfig attention{.heads = integer(j, "num_attention_heads"),
                                .head_size = integer(j, "head_dim")};
  attention.kv_heads = integer(j, "num_key_value_heads", attention.heads);
  const nn::MlpConfig mlp{.ffn = integer(j, "intermediate_size"),
                          .activation = activation(j, "mlp_hidden_act"),
                          .bias = boolean(j, "mlp_bias")};
  for (const char letter : letters) {
    LayerValue layer{.mixer = NoOp{}, .feed_forward = NoOp{}, .norm = value.final_norm};
    if (letter == 'M') layer.mixer = space;
    if (letter == '*') layer.mixer = attention;
    if (letter == '-') layer.feed_forward = mlp;
    if (letter == 'E') layer.feed_forward = read_experts(j, mlp);
    value.layers.push_back(std::move(layer));
  }
  return value;
}

const LayerKind& kind_of(const LayerValue& layer) {
  const bool feeds = layer.mlp() != nullptr || layer.moe() != nullptr,
             mixes = layer.state_space() != nullptr || layer.attention() != nullptr;
  MG_CHECK(feeds != mixes, "a layer that is not one of: a state space, attention, an MLP, experts");
  if (layer.state_space() != nullptr) return kLayerKinds[0];
  if (layer.attention() != nullptr) return kLayerKinds[1];
  return kLayerKinds[layer.mlp() != nullptr ? 2 : 3];
}

void write_experts(const nn::MoeConfig& moe, Json& j) {
  j.set("moe_intermediate_size", moe.expert.ffn);
  j.set("moe_latent_size", moe.latent > 0 ? Json(moe.latent) : Json());
  j.set("moe_shared_expert_intermediate_size", moe.shared_ffn);
  j.set("n_group", moe.router.groups);
  j.set("n_routed_experts", moe.experts);
  j.set("norm_topk_prob", moe.router.normalised);
  j.set("num_experts_per_tok", moe.choices);
  j.set("routed_scaling_factor", moe.router.scale);
  j.set("topk_group", moe.router.chosen_groups);
}

Json write(const DecoderValue& value) {
  Json j(Json::Object{});
  Json::Array types;
  std::string letters;
  for (const LayerValue& layer : value.layers) {
    const LayerKind& kind = kind_of(layer);
    types.emplace_back(kind.name);
    letters += kind.letter;
  }
  j.set("architectures", Json::Array{"NemotronHForCausalLM"});
  j.set("attention_bias", false);
  j.set("attention_dropout", value.attention_dropout);
  j.set("expand", 2);  // which is not used
  j.set("hidden_dropout", 0.0);
  j.set("hidden_size", value.hidden_size);
  j.set(kPattern, letters);  // for older readers
  j.set("initializer_range", value.init_method_std);
  j.set("layer_norm_epsilon", value.final_norm.epsilon);
  j.set(kTypes, std::move(types));
  j.set("max_position_embeddings", value.max_position_embeddings);
  j.set("n_shared_experts", 1);
  j.set("num_hidden_layers", value.num_layers());
  j.set("num_nextn_predict_layers", 0);  // they are left out
  j.set("output_router_logits", value.router.states_router_logits);
  j.set("sliding_window", Json());
  j.set("tie_word_embeddings", !value.untied);
  j.set("vocab_size", value.vocab_size);
  if (const nn::StateSpaceConfig* space = value.first_state_space()) {
    write_state_space(*space, kKeysOfSpace, j);
    write_initial_steps(*space, j);
    j.set("time_step_min", space->min_step);
    j.set("mamba_hidden_act", "silu");
    j.set("mamba_proj_bias", space->bias);
    j.set("use_bias", space->bias);
  }
  if (const nn::AttentionConfig* a = value.first_attention()) {
    j.set("head_dim", a->head_size);
    j.set("num_attention_heads", a->heads);
    j.set("num_key_value_heads", a->kv_heads);
  }
  const nn::MlpConfig* mlp = value.first_mlp();
  const nn::MoeConfig* moe = value.first_moe();
  if (mlp != nullptr) j.set("intermediate_size", mlp->ffn);
  if (moe != nullptr) write_experts(*moe, j);
  if (mlp == nullptr && moe != nullptr) mlp = &moe->expert;
  if (mlp != nullptr) {
    j.set("mlp_bias", mlp->bias);
    j.set("mlp_hidden_act", activation_name(mlp->activation));
  }
  return j;
}

FamilyTensors tensors(const DecoderValue&) {
  FamilyTensors map{.layer_prefix = "backbone.layers.*.",
                    .outside = {{"embedding", "backbone.embeddings"},
                                {"final_norm", "backbone.norm_f"},
                                {"output", "lm_head"}},
                    .layer = {{"attention_norm", "norm"},
                              {"mlp_norm", "norm"},
                              {"attention.qkv", "mixer.q_proj", Take::q},
                              {"attention.qkv", "mixer.k_proj", Take::k},
                              {"attention.qkv", "mixer.v_proj", Take::v},
                              {"attention.output", "mixer.o_proj"},
                              {"mlp.up", "mixer.up_proj"},
                              {"mlp.down", "mixer.down_proj"},
                              {"mlp.router.weight", "mixer.gate.weight"},
                              {"mlp.router.correction", "mixer.gate.e_score_correction_bias"},
                              {"mlp.experts.up", "mixer.experts.#.up_proj", Take::experts},
                              {"mlp.experts.down", "mixer.experts.#.down_proj", Take::experts},
                              {"mlp.shared.up", "mixer.shared_experts.up_proj"},
                              {"mlp.shared.down", "mixer.shared_experts.down_proj"},
                              {"mlp.latent_in", "mixer.fc1_latent_proj"},
                              {"mlp.latent_out", "mixer.fc2_latent_proj"}}};
  map.layer.insert(map.layer.end(), mixer_tensors().begin(), mixer_tensors().end());
  return map;
}

constexpr auto kKeys = state_space_flags<3>(
    kKeysOfSpace,
    {{{"--num-experts", "n_routed_experts"},
      {"--moe-shared-expert-intermediate-size", "moe_shared_expert_intermediate_size"},
      {"--norm-epsilon", "layer_norm_epsilon"}}});
// Layers of multi-token prediction, which are hybrids of their own.
constexpr std::string_view kLeftOut[] = {"mtp."};

}  // namespace nemotron_h

const DecoderFamily kNemotronH = {.name = "nemotron_h",
                                  .models = "Nemotron-H, Nemotron Nano 2 and 3",
                                  .read = nemotron_h::read,
                                  .write = nemotron_h::write,
                                  .tensors = nemotron_h::tensors,
                                  .defaults = nemotron_h::kDefaults,
                                  .aliases = nemotron_h::kAliases,
                                  .keys = nemotron_h::kKeys,
                                  .buffers = nemotron_h::kLeftOut,
                                  .base_prefix = "backbone."};

}  // namespace megatron::models
