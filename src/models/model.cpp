#include "models/model.h"

#include <fmt/ranges.h>

#include <array>

#include "base/error.h"
#include "models/gpt/definition.h"
#include "models/stage.h"

namespace megatron::models {
namespace {

struct Family {
  std::string_view name;
  Model (*read)(const Json& config);
};

constexpr std::array kFamilies = {Family{"gpt2", gpt2_from_config_json},
                                  Family{"llama", llama_from_config_json}};

}  // namespace

std::unique_ptr<Stage> Model::build(Runtime& runtime, DType type, uint64_t seed,
                                    const parallel::ModelPart& part,
                                    const parallel::ModelRanks& ranks) const {
  return definition_->build(runtime, type, seed, part, ranks);
}

std::unique_ptr<Stage> Model::build(Runtime& runtime, DType type, uint64_t seed) const {
  auto stage = build(runtime, type, seed, {.layers = definition_->num_layers()}, {});
  parallel::allocate(tensors_of(*stage), runtime);
  return stage;
}

std::vector<std::string_view> family_names() {
  std::vector<std::string_view> names;
  for (const Family& family : kFamilies) names.push_back(family.name);
  return names;
}

Model model_from_config_json(const Json& config) {
  const std::string type = config["model_type"].as_string();
  for (const Family& family : kFamilies)
    if (family.name == type) return family.read(config);
  fail("config.json has model_type '{}'; this version supports {}", type,
       fmt::join(family_names(), " and "));
}

Model model_from_flags(const ModelFlags& flags, int64_t seq_length) {
  return gpt_from_flags(flags, seq_length);
}

}  // namespace megatron::models
