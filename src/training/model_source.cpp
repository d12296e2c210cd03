#include "training/model_source.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
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

std::string tokenizer_path(const std::optional<std::string>& given,
                           const std::string& model_directory) {
  if (given) return *given;
  MG_CHECK(tokenizers::has_tokenizer_file(model_directory),
           "{} contains no tokenizer.json, nor any other tokenizer; give --tokenizer-model (the "
           "tokenizer's file or directory)",
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
