// Zamba2 (Glorioso et al. 2024): Mamba-2 in every layer, before which some layers run one of a few
// shared transformer blocks in turn.
#include <cmath>

#include "base/error.h"
#include "models/families/all.h"
#include "models/families/rotary_json.h"
#include "models/families/state_space_json.h"

namespace megatron::models {
namespace zamba2 {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 32000, "max_position_embeddings": 4096, "hidden_size": 2560,
  "num_hidden_layers": 54, "mamba_d_state": 64, "mamba_d_conv": 4, "mamba_expand": 2,
  "mamba_ngroups": 1, "time_step_min": 0.001, "time_step_max": 0.1, "time_step_floor": 1e-4,
  "n_mamba_heads": 8, "use_conv_bias": true, "add_bias_linear": false, "hidden_act": "gelu",
  "num_attention_heads": 32, "attention_dropout": 0.0, "num_mem_blocks": 1,
  "use_shared_attention_adapter": false, "adapter_rank": 128, "use_mem_rope": false,
  "rope_theta": 10000.0, "initializer_range": 0.02, "rms_norm_eps": 1e-5,
  "use_long_context": false, "tie_word_embeddings": true})";

constexpr DecoderFamily::Alias kAliases[] = {{"layer_types", "layers_block_type"}};

constexpr std::string_view kTypes = "layers_block_type", kHybrids = "hybrid_layer_ids";
constexpr std::string_view kSpace = "linear_attention", kOlderSpace = "mamba", kHybrid = "hybrid";
constexpr StateSpaceKeys kKeysOfSpace{.heads = "n_mamba_heads",
                                      .head_size = "mamba_headdim",
                                      .groups = "mamba_ngroups",
                                      .states = "mamba_d_state",
                                      .conv_width = "mamba_d_conv",
                                      .conv_bias = "use_conv_bias"};
constexpr double kGatedNormEpsilon = 1e-5;  // whatever rms_norm_eps is
constexpr int64_t kLongContext = 16384;     // with use_long_context

std::vector<bool> listed_types(const Json& types, int64_t layers) {
  MG_CHECK(types.is_array() && std::ssize(types.as_array()) == layers,
           "config.json has num_hidden_layers = {} and {} = {}; it must list one type per layer",
           layers, kTypes, types.dump());
  std::vector<bool> hybrid;
  for (const Json& type : types.as_array()) {
    const std::string name = type.is_string() ? type.as_string() : type.dump();
    MG_CHECK(name == kSpace || name == kOlderSpace || name == kHybrid,
             "config.json has '{}' in {}; supported: {}, {}, {}", name, kTypes, kSpace, kOlderSpace,
             kHybrid);
    hybrid.push_back(name == kHybrid);
  }
  return hybrid;
}

std::vector<bool> listed_hybrids(const Json& ids, int64_t layers) {
  std::vector<bool> hybrid(static_cast<size_t>(layers));
  MG_CHECK(ids.is_array(), "config.json has {} = {}; it must be a list of layers", kHybrids,
           ids.dump());
  for (const Json& id : ids.as_array()) {
    MG_CHECK(id.is_integer() && id.as_integer() >= 0 && id.as_integer() < layers,
             "config.json has {} in {}; it must list layers from 0 to {}", id.dump(), kHybrids,
             layers - 1);
    hybrid[static_cast<size_t>(id.as_integer())] = true;
  }
  return hybrid;
}

// Which layers have a shared block.
std::vector<bool> hybrid_layers(const Json& j, int64_t layers) {
  const Json *types = present(j, kTypes), *ids = present(j, kHybrids);
  MG_CHECK(types != nullptr || ids != nullptr,
           "config.json has neither {} nor {}, which say which of its {} layers have a shared "
           "block; give one of them",
           kTypes, kHybrids, layers);
  if (types == nullptr) return listed_hybrids(*ids, layers);
  std::vector<bool> hybrid = listed_types(*types, layers);
  MG_CHECK(ids == nullptr || listed_hybrids(*ids, layers) == hybrid,
           "config.json has {} = {}, but the layers of type {} in {} are different ones; leave one "
           "of the keys out",
           kHybrids, ids->dump(), kHybrid, kTypes);
  return hybrid;
}

nn::StateSpaceConfig read_space(const Json& config, int64_t hidden) {
  Json j = config;
  const int64_t heads = integer(j, kKeysOfSpace.heads), width = integer(j, "mamba_expand") * hidden;
  MG_CHECK(width % heads == 0,
           "config.json has mamba_expand * hidden_size = {}, which is not a multiple of {} = {}",
           width, kKeysOfSpace.heads, heads);
  // The class of transformers derives it, whatever the file says.
  const int64_t size = integer(j, kKeysOfSpace.head_size, width / heads);
  MG_CHECK(
      size == width / heads,
      "config.json has {} = {}; with mamba_expand * hidden_size = {} and {} heads ({}) it must "
      "be {}",
      kKeysOfSpace.head_size, size, width, heads, kKeysOfSpace.heads, width / heads);
  j.set(kKeysOfSpace.head_size, size);
  nn::StateSpaceConfig space = read_state_space(j, kKeysOfSpace, kGatedNormEpsilon);
  space.bias = space.output_bias = boolean(j, "add_bias_linear");
  space.min_step = number(j, "time_step_min");
  read_initial_steps(j, space);
  return space;
}

SharedBlockConfig read_block(const Json& j, const DecoderValue& value) {
  SharedBlockConfig shared;
  nn::AttentionConfig& a = shared.attention;
  a.heads = integer(j, "num_attention_heads");
  a.kv_heads = integer(j, "num_key_value_heads", a.heads);
  const int64_t width = 2 * value.hidden_size;
  refuse_unless(j, "attention_hidden_size", width);
  MG_CHECK(width % a.heads == 0,
           "config.json has num_attention_heads = {}; it must divide twice the hidden_size, {}",
           a.heads, width);
  a.head_size = width / a.heads;
  refuse_unless(j, "attention_head_dim", a.head_size);
  set_score_scale(a, 1 / std::sqrt(static_cast<double>(a.head_size) / 2));
  if (boolean(j, "use_mem_rope")) a.rotary = "default";
  shared.mlp = {.ffn = integer(j, "intermediate_size", 4 * value.hidden_size),
                .activation = activation(j, "hidden_act"),
                .gated = true,
                .bias = boolean(j, "add_bias_linear")};
  shared.mlp_rank = integer(j, "adapter_rank");
  if (boolean(j, "use_shared_attention_adapter")) shared.attention_rank = shared.mlp_rank;
  return shared;
}

DecoderValue read(const Json& j) {
  DecoderValue value;
  const int64_t layers = layer_count(j, "num_hidden_layers"), blocks = integer(j, "num_mem_blocks");
  value.hidden_size = integer(j, "hidden_size");
  value.vocab_size = integer(j, "vocab_size");
  value.max_position_embeddings =
      boolean(j, "use_long_context") ? kLongContext : integer(j, "max_position_embeddings");
  value.untied = !boolean(j, "tie_word_embeddings");
  value.init_method_std = number(j, "initializer_range");
  value.attention_dropout = number(j, "attention_dropout");
  value.final_norm = {.kind = nn::Normalization::rms_norm, .epsilon = positive(j, "rms_norm_eps")};
  const nn::StateSpaceConfig space = read_space(j, value.hidden_size);
  SharedBlockConfig shared = read_block(j, value);
  shared.state_space = space;
  if (!shared.attention.rotary.empty()) value.rotary["default"] = read_rotary(j);
  int64_t use = 0;
  for (const bool hybrid : hybrid_layers(j, layers)) {
    LayerValue layer{.mixer = space, .feed_forward = NoOp{}, .norm = value.final_norm};
    if (hybrid) {
      shared.block = use++ % blocks;
      layer.mixer = shared;
      layer.mixer_norm = false;  // it has one of its own
    }
    value.layers.push_back(std::move(layer));
  }
  MG_CHECK(use > 0,
           "config.json has no layer of type {} in {}; a model of state spaces alone has the "
           "model_type mamba2",
           kHybrid, kTypes);
  return value;
}

int64_t block_count(const DecoderValue& value) {
  int64_t count = 0;
  for (const LayerValue& layer : value.layers)
    if (const auto* s = std::get_if<SharedBlockConfig>(&layer.mixer))
      count = std::max(count, s->block + 1);
  return count;
}

Json write(const DecoderValue& value) {
  const SharedBlockConfig* shared = nullptr;
  Json::Array types, ids;
  for (const LayerValue& layer : value.layers) {
    const auto* own = std::get_if<SharedBlockConfig>(&layer.mixer);
    if (own != nullptr) {
      ids.emplace_back(std::ssize(types));
      if (shared == nullptr) shared = own;
    }
    types.emplace_back(own != nullptr ? kHybrid : kSpace);
  }
  MG_CHECK(shared != nullptr, "a model without layers that share a block");
  const nn::AttentionConfig& a = shared->attention;
  const nn::StateSpaceConfig& space = shared->state_space;
  Json j(Json::Object{});
  j.set("adapter_rank", shared->mlp_rank);
  j.set("add_bias_linear", space.bias);
  j.set("architectures", Json::Array{"Zamba2ForCausalLM"});
  j.set("attention_dropout", value.attention_dropout);
  j.set("attention_head_dim", a.head_size);
  j.set("attention_hidden_size", 2 * value.hidden_size);
  j.set("hidden_act", activation_name(shared->mlp.activation));
  j.set("hidden_size", value.hidden_size);
  j.set(kHybrids, std::move(ids));
  j.set("initializer_range", value.init_method_std);
  j.set("intermediate_size", shared->mlp.ffn);
  j.set("kv_channels", value.hidden_size / a.heads);
  j.set(kTypes, std::move(types));
  j.set("mamba_expand", expansion(space, value));
  j.set("max_position_embeddings", value.max_position_embeddings);
  j.set("num_attention_heads", a.heads);
  j.set("num_hidden_layers", value.num_layers());
  j.set("num_key_value_heads", a.kv_heads);
  j.set("num_mem_blocks", block_count(value));
  j.set("num_query_groups", a.heads);
  j.set("rms_norm_eps", value.final_norm.epsilon);
  if (const auto rotary = value.rotary.find("default"); rotary != value.rotary.end())
    j.set("rope_parameters", write_rotary(rotary->second));
  j.set("tie_word_embeddings", !value.untied);
  j.set("use_long_context", false);
  j.set("use_mem_rope", !a.rotary.empty());
  j.set("use_shared_attention_adapter", shared->attention_rank > 0);
  j.set("vocab_size", value.vocab_size);
  write_state_space(space, kKeysOfSpace, j);
  write_initial_steps(space, j);
  j.set("time_step_min", space.min_step);
  return j;
}

FamilyTensors tensors(const DecoderValue&) {
  return {
      .layer_prefix = "model.layers.*.",
      .outside = {{"embedding", "model.embed_tokens"},
                  {"final_norm", "model.final_layernorm"},
                  {"output", "lm_head"}},
      .layer = {{"attention_norm", "input_layernorm"},
                {"attention.state_space.in_proj", "mamba.in_proj"},
                {"attention.state_space.conv", "mamba.conv1d"},
                {"attention.state_space.a_log", "mamba.A_log"},
                {"attention.state_space.dt_bias", "mamba.dt_bias"},
                {"attention.state_space.d", "mamba.D"},
                {"attention.state_space.norm", "mamba.norm"},
                {"attention.state_space.out_proj", "mamba.out_proj"},
                {"attention.norm", "mamba_decoder.input_layernorm"},
                {"attention.mixer.state_space.in_proj", "mamba_decoder.mamba.in_proj"},
                {"attention.mixer.state_space.conv", "mamba_decoder.mamba.conv1d"},
                {"attention.mixer.state_space.a_log", "mamba_decoder.mamba.A_log"},
                {"attention.mixer.state_space.dt_bias", "mamba_decoder.mamba.dt_bias"},
                {"attention.mixer.state_space.d", "mamba_decoder.mamba.D"},
                {"attention.mixer.state_space.norm", "mamba_decoder.mamba.norm"},
                {"attention.mixer.state_space.out_proj", "mamba_decoder.mamba.out_proj"},
                {"attention.projection", "linear"},
                {"attention.shared.norm", "shared_transformer.input_layernorm"},
                {"attention.shared.attention.qkv", "shared_transformer.self_attn.q_proj", Take::q},
                {"attention.shared.attention.qkv", "shared_transformer.self_attn.k_proj", Take::k},
                {"attention.shared.attention.qkv", "shared_transformer.self_attn.v_proj", Take::v},
                {"attention.shared.attention.q_adapter",
                 "shared_transformer.self_attn.linear_q_adapter_list"},
                {"attention.shared.attention.k_adapter",
                 "shared_transformer.self_attn.linear_k_adapter_list"},
                {"attention.shared.attention.v_adapter",
                 "shared_transformer.self_attn.linear_v_adapter_list"},
                {"attention.shared.attention.output", "shared_transformer.self_attn.o_proj"},
                {"attention.shared.mlp_norm", "shared_transformer.pre_ff_layernorm"},
                {"attention.shared.mlp.up", "shared_transformer.feed_forward.gate_up_proj"},
                {"attention.shared.mlp.up_adapter",
                 "shared_transformer.feed_forward.gate_up_proj_adapter_list"},
                {"attention.shared.mlp.down", "shared_transformer.feed_forward.down_proj"}}};
}

constexpr auto kKeys = state_space_flags(kKeysOfSpace);

}  // namespace zamba2

const DecoderFamily kZamba2 = {.name = "zamba2",
                               .models = "Zamba2",
                               .read = zamba2::read,
                               .write = zamba2::write,
                               .tensors = zamba2::tensors,
                               .defaults = zamba2::kDefaults,
                               .aliases = zamba2::kAliases,
                               .keys = zamba2::kKeys,
                               .score_class = "Zamba2ForSequenceClassification"};

}  // namespace megatron::models
