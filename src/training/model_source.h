// Where a model's shape and weights come from, and where a trained one goes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/model_directory.h"
#include "models/gpt/model.h"

namespace megatron::training {

// A Hugging Face directory as it is, or DIR/iter_N of a --save directory by its
// latest_checkpointed_iteration.txt. Throws Error naming what is missing.
std::string resolve_model_directory(const std::string& path);

// Where the tokenizer of a model lies: `given` (--tokenizer-model), or the model's directory.
// Throws Error when neither holds one.
std::string tokenizer_path(const std::optional<std::string>& given,
                           const std::string& model_directory);

// A model with the weights of a directory.
std::unique_ptr<models::GptModel> load_model(const checkpoint::ModelDirectory& directory,
                                             const models::GptConfig& config, Runtime& runtime,
                                             DType type, uint64_t seed);

// The files of a directory (or one file) that say how text becomes tokens and how it is generated.
// "" gives none.
std::vector<std::string> companion_files(const std::string& path);

// What is put beside the weights of a checkpoint.
struct Companions {
  std::vector<std::string> copied;                           // paths
  std::vector<std::pair<std::string, std::string>> written;  // names and content
};

// A --save directory: DIR/iter_0000100/ and DIR/latest_checkpointed_iteration.txt.
class SaveDirectory {
 public:
  // Throws Error when the path holds something that a new run would overwrite.
  explicit SaveDirectory(std::string path);
  // Makes the directory. Throws Error when it cannot be written.
  void create() const;
  // Writes the model whole or not at all, then the tracker; returns the model's directory. config:
  // config.json.
  std::string save(int64_t iteration, const models::GptModel& model, const Json& config,
                   const Companions& companions) const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace megatron::training
