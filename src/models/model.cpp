#include "models/model.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/log.h"
#include "models/decoder/definition.h"
#include "models/decoder/flags.h"
#include "models/families/family.h"
#include "models/stage.h"
#include "models/upcycling.h"

namespace megatron::models {

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

UpcycledModel ModelDefinition::upcycled(const UpcyclingFlags&) const {
  fail(
      "--moe-use-upcycling: a model of type {} has no feed-forward blocks that could become "
      "experts",
      family());
}

std::vector<std::string_view> family_names() {
  std::vector<std::string_view> names;
  for (const DecoderFamily* family : families()) names.push_back(family->name);
  return names;
}

namespace {

Model read_model(const Json& config) {
  const Json* named = config.is_object() ? config.find("model_type") : nullptr;
  MG_CHECK(named != nullptr, "config.json has no model_type; supported: {}",
           fmt::join(family_names(), ", "));
  const std::string type = named->is_string() ? named->as_string() : named->dump();
  for (const DecoderFamily* family : families())
    if (family->name == type)
      return decoder_model(read_config(*family, config), *family, form_of(config));
  fail("config.json has model_type '{}'; this version supports {}", type,
       fmt::join(family_names(), ", "));
}

}  // namespace

Model model_from_config_json(const Json& config, const std::string& path) {
  try {
    return read_model(config);
  } catch (const Error& error) {
    constexpr std::string_view kFile = "config.json";
    const std::string text = error.what();
    fail("{}{}", path, text.starts_with(kFile) ? text.substr(kFile.size()) : ": " + text);
  }
}

Model model_from_directory(const std::string& directory) {
  const std::string path = directory + "/config.json";
  return model_from_config_json(Json::read(path), path);
}

Model with_context_length(const Model& model, int64_t length) {
  if (length == 0) return model;
  if (length > model->context_length())
    log::info("--inference-max-seq-length {} is above the model's context length of {} tokens",
              length, model->context_length());
  return model->with({.context_length = length});
}

void require_language_model(const Model& model, std::string_view purpose) {
  MG_CHECK(model->score_labels() == 0,
           "the model classifies text (its config.json has a ForSequenceClassification "
           "architecture with {} labels); {} needs one with a language-model head",
           model->score_labels(), purpose);
}

Model model_from_flags(const ModelFlags& flags, int64_t seq_length) {
  DecoderValue value = value_of(flags, seq_length);
  const DecoderFamily& family = family_to_save(value, flags.model_family);
  zero_default_dropouts(family, flags, value);
  return decoder_model(value, family);
}

}  // namespace megatron::models
