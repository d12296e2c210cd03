#include "models/module_precision.h"

#include <fmt/core.h>
#include <fnmatch.h>

#include <utility>

#include "base/text_parts.h"
#include "models/stage.h"

namespace megatron::models {
namespace {

// Modules of a layer, and what Megatron-LM calls them.
constexpr std::pair<std::string_view, std::string_view> kModules[] = {
    {"attention.qkv", "self_attention.linear_qkv"},
    {"attention.output", "self_attention.linear_proj"},
    {"attention.q", "self_attention.linear_q_proj"},
    {"attention.q_down", "self_attention.linear_q_down_proj"},
    {"attention.q_up", "self_attention.linear_q_up_proj"},
    {"attention.kv_down", "self_attention.linear_kv_down_proj"},
    {"attention.kv_up", "self_attention.linear_kv_up_proj"},
    {"cross_attention.q", "cross_attention.linear_q"},
    {"cross_attention.kv", "cross_attention.linear_kv"},
    {"cross_attention.output", "cross_attention.linear_proj"},
    {"mlp.up", "mlp.linear_fc1"},
    {"mlp.down", "mlp.linear_fc2"},
    {"mlp.experts.up", "mlp.experts.linear_fc1"},
    {"mlp.experts.down", "mlp.experts.linear_fc2"},
    {"mlp.shared.up", "mlp.shared_experts.linear_fc1"},
    {"mlp.shared.down", "mlp.shared_experts.linear_fc2"},
    {"mlp.latent_in", "mlp.fc1_latent_proj"},
    {"mlp.latent_out", "mlp.fc2_latent_proj"},
    {"attention.state_space.in_proj", "mixer.in_proj"},
    {"attention.state_space.out_proj", "mixer.out_proj"},
};

// "layers.0.mlp.up" of "layers.0.mlp.up.weight".
std::string_view module_of(std::string_view weight) {
  constexpr std::string_view kWeight = ".weight";
  return weight.substr(0, weight.size() - (weight.ends_with(kWeight) ? kWeight.size() : 0));
}

std::map<std::string, std::optional<LowPrecisionFormats>> quantized_weights(const Model& model) {
  Runtime shapes_only({DeviceKind::meta, 0}, 1);
  const auto stage = model.build(shapes_only, DType::f32, 0, {.layers = model->num_layers()}, {});
  std::map<std::string, std::optional<LowPrecisionFormats>> formats;
  for (const parallel::ParameterSpec* placed : stage->parameters())
    if (const auto& how = placed->parameter.low_precision)
      formats.emplace(placed->parameter.name, how->formats);
  return formats;
}

}  // namespace

std::string formats_text(const LowPrecisionFormats& f) {
  constexpr std::string_view kFormats[] = {"e4m3", "e5m2", "e2m1"};
  const auto format = [&](LowFormat of) { return kFormats[static_cast<size_t>(of)]; };
  std::string text(format(f.forward));
  if (f.gradient != f.forward) text += fmt::format(", gradients in {}", format(f.gradient));
  text += fmt::format(", {} scales", name(f.recipe));
  return f.weight_gradients ? text : text + ", not for weight gradients";
}

LayerCounts layer_counts(const ModelFacts& facts) {
  return {facts.num_layers, facts.two_sided ? facts.num_layers : facts.encoder_layers};
}

std::string megatron_module(std::string_view weight, const LayerCounts& counts) {
  constexpr std::string_view kLayers = "layers.";
  const std::string_view module = module_of(weight);
  const size_t dot = module.find('.', kLayers.size());
  if (!module.starts_with(kLayers) || dot == module.npos) return {};
  const auto layer = parse_number<int64_t>(module.substr(kLayers.size(), dot - kLayers.size()));
  if (!layer) return {};
  const bool encodes = *layer < counts.encoder;
  for (const auto& [own, theirs] : kModules)
    if (module.substr(dot + 1) == own)
      return fmt::format("{}.layers.{}.{}", encodes ? "encoder" : "decoder",
                         encodes ? *layer : *layer - counts.encoder, theirs);
  return {};
}

bool fits(const PrecisionRule& rule, std::string_view weight, const LayerCounts& counts) {
  for (const std::string& name : {std::string(module_of(weight)), megatron_module(weight, counts)})
    if (!name.empty() && fnmatch(rule.pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0)
      return true;
  return false;
}

std::optional<LowPrecisionFormats> formats_of(const LowPrecisionLayers& low, int64_t layer,
                                              const LayerCounts& counts, std::string_view weight) {
  const bool quantized = low.covers(layer, counts.layers);
  const auto otherwise = quantized ? std::optional(low.formats) : std::nullopt;
  for (const PrecisionRule& rule : low.rules)
    if (fits(rule, weight, counts))
      return (quantized ? rule.of_quantized : rule.of_others) ? rule.formats : otherwise;
  return otherwise;
}

std::map<std::string, std::optional<LowPrecisionFormats>> module_precision(const Model& model) {
  const LowPrecisionLayers all{.formats = {.recipe = LowPrecisionRecipe::tensorwise}};
  auto modules = quantized_weights(model->with({.low_precision = all}));
  const auto quantized = quantized_weights(model);
  for (auto& [weight, formats] : modules) {
    const auto found = quantized.find(weight);
    formats = found == quantized.end() ? std::nullopt : found->second;
  }
  return modules;
}

}  // namespace megatron::models
