#include "models/families/family.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "models/families/all.h"
#include "models/families/config_json.h"

namespace megatron::models {
namespace {

constexpr std::array kFamilies = {
    &kGpt2,       &kLlama,   &kQwen2,   &kQwen3,      &kMistral,    &kGemma2,
    &kGemma3Text, &kPhi3,    &kOlmo2,   &kGranite,    &kNemotron,   &kNemotronNas,
    &kStarcoder2, &kGptNeox, &kFalcon,  &kCohere2,    &kMixtral,    &kQwen2Moe,
    &kQwen3Moe,   &kOlmoe,   &kGlm4Moe, &kGptOss,     &kLlama4Text, &kDeepseekV2,
    &kDeepseekV3, &kKimiK2,  &kMamba2,  &kBamba,      &kNemotronH,  &kFalconH1,
    &kZamba2,     &kBert,    &kRoberta, &kDistilbert, &kModernbert, &kEsm,
    &kT5,         &kMt5,     &kUmt5,    &kMegatron};

constexpr DecoderFamily::Key kKeys[] = {
    {"--num-layers", "num_hidden_layers"},
    {"--moe-router-topk-scaling-factor", "routed_scaling_factor"},
    {"--moe-router-topk", "num_experts_per_tok"},
    {"--moe-router-num-groups", "n_group"},
    {"--moe-router-group-topk", "topk_group"},
    {"--moe-ffn-hidden-size", "moe_intermediate_size"},
    {"--moe-shared-expert-intermediate-size", "shared_expert_intermediate_size"},
    {"--num-experts", "num_experts"},
    {"--ffn-hidden-size", "intermediate_size"},
    {"--hidden-size", "hidden_size"},
    {"--num-attention-heads", "num_attention_heads"},
    {"--num-query-groups", "num_key_value_heads"},
    {"--kv-channels", "head_dim"},
    {"--max-position-embeddings", "max_position_embeddings"},
    {"--vocab-size", "vocab_size"},
    {"--hidden-dropout", "hidden_dropout"},
    {"--attention-dropout", "attention_dropout"},
    {"--norm-epsilon", "rms_norm_eps"},
    {"--init-method-std", "initializer_range"},
    {"--rotary-percent", "partial_rotary_factor"},
    {"--rotary-base", "rope_theta"},
    {"--window-size", "sliding_window"},
    {"--attn-logit-softcapping", "attn_logit_softcapping"},
    {"--final-logit-softcapping", "final_logit_softcapping"},
    {"--embedding-multiplier", "embedding_multiplier"},
    {"--residual-multiplier", "residual_multiplier"}};

// A setting of training that no family has and every reader ignores.
constexpr std::string_view kWidthMultiplier = "mup_width_multiplier";

// Rewrites a message about flags in terms of the corresponding keys of this family's file.
std::string with_keys(std::string text, const DecoderFamily& family) {
  for (const auto keys : {family.keys, std::span<const DecoderFamily::Key>(kKeys)})
    for (const DecoderFamily::Key& key : keys)
      for (size_t at = 0; (at = text.find(key.flag, at)) != text.npos; at += key.key.size())
        text.replace(at, key.flag.size(), key.key);
  return text;
}

// For these keys null is a value, as in transformers' classes. For other keys it means the default.
constexpr std::string_view kNullable[] = {
    "sliding_window", "attention_chunk_size",    "num_key_value_heads", "attn_logit_softcapping",
    "q_lora_rank",    "final_logit_softcapping", "mamba_d_ssm"};

Json with_defaults(const DecoderFamily& family, Json config) {
  for (const DecoderFamily::Alias& alias : family.aliases)
    if (const Json* value = present(config, alias.other)) config.set(alias.key, *value);
  const Json defaults = Json::parse(family.defaults);
  for (const auto& [key, value] : defaults.as_object()) {
    const bool nullable = std::ranges::find(kNullable, key) != std::end(kNullable);
    if (nullable ? !config.contains(key) : present(config, key) == nullptr) config.set(key, value);
  }
  return config;
}

bool names_score_class(const DecoderFamily& family, const Json& config) {
  const Json* names = present(config, "architectures");
  return !family.score_class.empty() && names != nullptr && names->is_array() &&
         !names->as_array().empty() && names->as_array()[0].is_string() &&
         names->as_array()[0].as_string() == family.score_class;
}

DecoderValue read(const DecoderFamily& family, const Json& config) {
  DecoderValue value = family.read(with_defaults(family, config));
  if (names_score_class(family, config)) read_score_head(config, value);
  value.width_multiplier = number(config, kWidthMultiplier, 1);
  return value;
}

// Throws Error if config.json names a head that the value does not have.
void check_head(const DecoderFamily& family, const Json& config, const DecoderValue& value) {
  const Json* names = present(config, "architectures");
  if (names == nullptr || family.has_heads) return;
  const bool listed = names->is_array() && !names->as_array().empty() &&
                      std::ranges::all_of(names->as_array(), &Json::is_string);
  MG_CHECK(listed, "config.json has architectures = {}; it must be a list of names", names->dump());
  const std::string name = names->as_array()[0].as_string();
  const size_t at = name.rfind("For");
  if (at == name.npos) return;
  const std::string_view text =
      value.encoder_layers > 0 ? "ForConditionalGeneration" : "ForCausalLM";
  if (value.score_labels > 0 || name.substr(at) == text) return;
  fail("config.json has architectures = '{}'; supported for {}: {}{}{}{}", name, family.name,
       name.substr(0, at), text, family.score_class.empty() ? "" : ", ", family.score_class);
}

std::string shown(const Json* value) { return value == nullptr ? "its default" : value->dump(); }

// Returns the first part of a value's description that differs when it is read back.
std::string first_difference(const Json& value, const Json& back) {
  for (const auto& [name, json] : value.as_object()) {
    const Json* other = back.find(name);
    if (other == nullptr || !(*other == json))
      return fmt::format("it has {} {}, but the file can only represent {}", name, json.dump(),
                         shown(other));
  }
  for (const auto& [name, json] : back.as_object())
    if (!value.contains(name))
      return fmt::format("it has {} at its default, but the file can only represent {}", name,
                         json.dump());
  return "";
}

// Compares layers one by one, since a list of all would not be informative.
std::string first_difference(const DecoderValue& value, const DecoderValue& back) {
  DecoderValue with_layers = back;
  with_layers.layers = value.layers;
  const std::string text = first_difference(to_json(value), to_json(with_layers));
  if (!text.empty()) return text;
  MG_ASSERT(value.layers.size() == back.layers.size());
  const auto [ours, theirs] = std::ranges::mismatch(value.layers, back.layers);
  if (ours == value.layers.end()) return "";
  const auto alone = [](const LayerValue& layer) {
    return to_json(DecoderValue{.layers = {layer}, .final_norm = layer.norm});
  };
  return fmt::format("in layer {}, {}", ours - value.layers.begin(),
                     first_difference(alone(*ours), alone(*theirs)));
}

std::string dropout_obstacle(std::string_view flag, double value) {
  return fmt::format(
      "it has {} {}, which the file cannot represent: use {} 0 or, for a model described by flags, "
      "--model-family megatron, which can represent any value",
      flag, value, flag);
}

// Objects of transformers are sorted by their keys.
Json sorted(Json config) {
  std::ranges::stable_sort(config.as_object(), {}, &Json::Member::first);
  return config;
}

// Converts the keys to those of versions before 5.
Json older(Json config, const DecoderFamily& family) {
  if (const Json* rope = config.find("rope_parameters");
      rope != nullptr && rope->contains("rope_type")) {
    Json::Object scaling;
    for (const auto& [name, value] : rope->as_object()) {
      if (name == "rope_theta" || name == "partial_rotary_factor") continue;
      scaling.emplace_back(name, value);
    }
    config.set("rope_theta", (*rope)["rope_theta"]);
    if (const Json* part = rope->find("partial_rotary_factor"))
      config.set("partial_rotary_factor", *part);
    const bool scaled = (*rope)["rope_type"].as_string() != "default";
    config.set("rope_scaling", scaled ? Json(std::move(scaling)) : Json());
    std::erase_if(config.as_object(),
                  [](const Json::Member& member) { return member.first == "rope_parameters"; });
  }
  for (const DecoderFamily::OlderKey& key : family.older_keys)
    for (Json::Member& member : config.as_object())
      if (member.first == key.now) member.first = key.before;
  return config;
}

Json written(const DecoderFamily& family, const DecoderValue& value) {
  Json config = family.write(value);
  config.set("model_type", family.name);
  if (value.score_labels > 0 && !family.score_class.empty()) {
    config.set("architectures", Json::Array{family.score_class});
    write_score_head(value, config);
  }
  if (value.width_multiplier != 1) config.set(kWidthMultiplier, value.width_multiplier);
  return config;
}

}  // namespace

bool is_computed_buffer(std::string_view name) {
  constexpr std::string_view kModules[] = {"rotary_emb", "rotary_emb_local", "maybe_rotary"};
  constexpr std::string_view kBuffers[] = {"inv_freq",    "original_inv_freq", "cos_cached",
                                           "sin_cached",  "freqs_cis",         "masked_bias",
                                           "causal_mask", "attention_mask",    "position_ids"};
  for (size_t dot = name.find('.'); dot != name.npos; dot = name.find('.')) {
    if (std::ranges::find(kModules, name.substr(0, dot)) != std::end(kModules)) return true;
    name.remove_prefix(dot + 1);
  }
  return std::ranges::find(kBuffers, name) != std::end(kBuffers);
}

std::span<const DecoderFamily* const> families() { return kFamilies; }

const DecoderFamily& family_named(std::string_view name) {
  for (const DecoderFamily* family : kFamilies)
    if (family->name == name) return *family;
  std::vector<std::string_view> names;
  for (const DecoderFamily* family : kFamilies) names.push_back(family->name);
  fail("there is no model type '{}'; supported: {}", name, fmt::join(names, ", "));
}

void zero_default_dropouts(const DecoderFamily& family, const ModelFlags& flags,
                           DecoderValue& value) {
  const DecoderValue back = read(family, written(family, value));
  if (!flags.hidden_dropout && back.hidden_dropout != value.hidden_dropout)
    value.hidden_dropout = 0;
  if (!flags.attention_dropout && back.attention_dropout != value.attention_dropout)
    value.attention_dropout = 0;
}

std::string obstacle(const DecoderFamily& family, const DecoderValue& value) {
  try {
    const DecoderValue back = read(family, written(family, value));
    if (std::string difference = first_difference(value, back); !difference.empty())
      return difference;
    if (back.hidden_dropout != value.hidden_dropout)
      return dropout_obstacle("--hidden-dropout", value.hidden_dropout);
    if (back.attention_dropout != value.attention_dropout)
      return dropout_obstacle("--attention-dropout", value.attention_dropout);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

const DecoderFamily& family_for(const DecoderValue& value) {
  // Dropout is a training setting and does not affect the choice of a family. If it cannot be
  // saved, saving throws an error.
  DecoderValue plain = value;
  plain.hidden_dropout = plain.attention_dropout = 0;
  for (const DecoderFamily* family : kFamilies)
    if (obstacle(*family, plain).empty()) return *family;
  return kMegatron;
}

const DecoderFamily& family_to_save(const DecoderValue& value,
                                    const std::optional<std::string>& named) {
  if (!named) return family_for(value);
  const DecoderFamily& family = family_named(*named);
  DecoderValue plain = value;
  plain.hidden_dropout = plain.attention_dropout = 0;
  const std::string in_the_way = obstacle(family, plain);
  MG_CHECK(in_the_way.empty(),
           "--model-family {} cannot represent the model that the flags describe: {}", family.name,
           in_the_way);
  return family;
}

DecoderValue read_config(const DecoderFamily& family, const Json& config) {
  MG_CHECK(config.is_object(), "config.json is {}; it must be a JSON object", config.dump());
  try {
    DecoderValue value = read(family, config);
    check_head(family, config, value);
    value.check();
    return value;
  } catch (const Error& error) {
    fail("{}", with_keys(error.what(), family));
  }
}

ConfigForm form_of(const Json& config) {
  const bool older = config.contains("torch_dtype") || config.contains("rope_scaling");
  return older && !config.contains("rope_parameters") ? ConfigForm::older
                                                      : ConfigForm::transformers_5;
}

Json write_config(const DecoderFamily& family, const DecoderValue& value, DType stored,
                  ConfigForm form) {
  const std::string in_the_way = obstacle(family, value);
  MG_CHECK(in_the_way.empty(), "the config.json of a {} cannot represent the model: {}",
           family.name, in_the_way);
  Json config = written(family, value);
  if (form == ConfigForm::older) {
    config = older(std::move(config), family);
  } else if (const Json* rope = config.find("rope_parameters");
             rope != nullptr && rope->contains("rope_theta")) {
    // transformers before version 5 reads the key at the top level.
    const Json base = (*rope)["rope_theta"];
    if (base.as_number() != 10000) config.set("rope_theta", base);
  }
  config.set(form == ConfigForm::older ? "torch_dtype" : "dtype", stored_name(stored));
  return sorted(std::move(config));
}

}  // namespace megatron::models
