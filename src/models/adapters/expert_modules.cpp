#include "models/adapters/expert_modules.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text_parts.h"

namespace megatron::models {
namespace {

constexpr std::string_view kExperts = ".experts.";
// In the order in which modules of experts declare them.
constexpr std::array<std::string_view, 2> kParameters = {"gate_up_proj", "down_proj"};

struct MatrixName {
  std::string_view name, parameter;
  int64_t half;
};
constexpr std::array kMatrices = {
    MatrixName{"gate_proj", kParameters[0], 0}, MatrixName{"up_proj", kParameters[0], 1},
    MatrixName{"down_proj", kParameters[1], 0}, MatrixName{"w1", kParameters[0], 0},
    MatrixName{"w3", kParameters[0], 1},        MatrixName{"w2", kParameters[1], 0}};

// Mixtral's block, which transformers 5 renamed.
std::string renamed(std::string_view block) {
  constexpr std::string_view kMixtral = ".block_sparse_moe";
  if (!block.ends_with(kMixtral)) return std::string(block);
  return std::string(block.substr(0, block.size() - kMixtral.size())) + ".mlp";
}

}  // namespace

std::optional<ExpertModule> expert_module(std::string_view module) {
  const size_t at = module.find(kExperts);
  if (at == module.npos) return {};
  std::string_view rest = module.substr(at + kExperts.size());
  const auto number = parse_number<int64_t>(take_until(rest, '.'));
  const auto matrix = std::ranges::find(kMatrices, rest, &MatrixName::name);
  if (!number || matrix == kMatrices.end()) return {};
  return ExpertModule{.experts = renamed(module.substr(0, at)) + ".experts",
                      .number = *number,
                      .parameter = matrix->parameter,
                      .half = matrix->half};
}

bool is_of_experts(std::string_view module) { return module.find(kExperts) != module.npos; }

std::optional<ModuleAdapter> adapter_of_matrix(const LoraConfig& config, std::string_view module) {
  const auto adapter = adapter_of(config, module, ModuleKind::linear);
  if (adapter) return adapter;
  const auto expert = expert_module(module);
  return expert ? adapter_of_parameter(config, expert->parameter_name()) : std::nullopt;
}

std::string stored_parameter_name(const LoraConfig& config, std::string_view parameter,
                                  AdapterPart part) {
  const size_t dot = parameter.rfind('.');
  const std::string module(parameter.substr(0, dot));
  const std::string_view name = parameter.substr(dot + 1);
  const auto place = std::ranges::find(kParameters, name);
  MG_ASSERT(place != kParameters.end());
  const int64_t outer = std::count_if(place + 1, kParameters.end(), [&](std::string_view other) {
    return adapter_of_parameter(config, module + "." + std::string(other)).has_value();
  });
  return stored_name({.module = module, .part = part, .nesting = outer});
}

}  // namespace megatron::models
