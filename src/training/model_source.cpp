#include "training/model_source.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "settings/recipes.h"
#include "tokenizers/tokenizer_file.h"
#include "training/whole_model.h"

namespace megatron::training {
namespace fs = std::filesystem;

NamedFiles companion_files(const std::string& path) {
  if (path.empty()) return {};
  const fs::path given(path);
  const fs::path directory = fs::is_directory(given) ? given : given.parent_path();
  std::vector<fs::path> paths;
  for (const auto name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json",
        "merges.txt", "tokenizer.model", "spiece.model", "vocab.txt", "tiktoken_config.json",
        "chat_template.jinja", "generation_config.json"}) {
    if (fs::exists(directory / name)) paths.push_back(directory / name);
  }
  if (!fs::is_directory(given) || tokenizers::has_tokenizer_file(path)) {
    const fs::path tokenizer = tokenizers::read_tokenizer_file(path).path;
    if (std::ranges::find(paths, tokenizer) == paths.end()) paths.push_back(tokenizer);
  }
  NamedFiles files;
  for (const fs::path& file : paths)
    files.emplace_back(file.filename().string(), read_file(file.string()));
  return files;
}

ShapeSource directory_source(const std::string& directory) {
  return {
      .name = directory, .directory = directory, .config = Json::read(directory + "/config.json")};
}

ShapeSource config_source(const settings::TrainSettings& s) {
  ShapeSource source{.name = *s.run.model_config};
  if (const auto text = settings::model_config_text(source.name)) {
    source.config = Json::parse(*text, source.name);
  } else {
    const std::vector<std::string> names = settings::model_config_names();
    const std::string near = nearest(source.name, names);
    MG_CHECK(fs::is_regular_file(source.name),
             "--model-config is {}, which is no file{}; give a config.json, or one of {}",
             source.name, near.empty() ? "" : fmt::format(" (did you mean {}?)", near),
             fmt::join(names, ", "));
    source.config = Json::read(source.name);
  }
  if (!s.shape.vocab_size) return source;
  MG_CHECK(source.config.is_object() && source.config.contains("vocab_size"),
           "--model-config {} has no vocab_size, which --vocab-size {} could replace; drop the one "
           "or the other",
           source.name, *s.shape.vocab_size);
  source.config.set("vocab_size", *s.shape.vocab_size);
  return source;
}

std::string tokenizer_path(const std::optional<std::string>& given,
                           const std::string& model_directory) {
  if (given) return *given;
  MG_CHECK(tokenizers::has_tokenizer_file(model_directory),
           "{} holds no tokenizer.json, nor another tokenizer; give --tokenizer-model (the "
           "tokenizer's file or its directory)",
           model_directory);
  return model_directory;
}

std::unique_ptr<models::Stage> load_model(const checkpoint::ModelDirectory& directory,
                                          const models::Model& model, Runtime& runtime, DType type,
                                          uint64_t seed) {
  auto stage = model.build(runtime, type, seed);
  const WholeModel whole = whole_model(*stage);
  const std::vector<std::string> absent = absent_states(whole, directory);
  if (!absent.empty()) {
    nn::initialize(stage->states(), seed, runtime.stream());
    log::warning("{}", absent_states_text(directory.path(), absent));
  }
  load_weights(directory, checkpoint::held(models::tensors_of(*stage)), whole, absent);
  return stage;
}

}  // namespace megatron::training
