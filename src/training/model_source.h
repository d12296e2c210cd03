// Where a model's shape and weights come from, and where a trained one goes.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "checkpoint/model_directory.h"
#include "models/gpt/model.h"

namespace megatron::training {

// A Hugging Face directory as it is, or DIR/iter_N of a --save directory by its
// latest_checkpointed_iteration.txt. Throws Error naming what is missing.
std::string resolve_model_directory(const std::string& path);

// A model with the weights of a directory.
std::unique_ptr<models::GptModel> load_model(const checkpoint::ModelDirectory& directory,
                                             const models::GptConfig& config, Runtime& runtime,
                                             DType type, uint64_t seed);

// A --save directory: DIR/iter_0000100/ and DIR/latest_checkpointed_iteration.txt.
class SaveDirectory {
 public:
  // Throws Error when the path holds something that a new run would overwrite.
  explicit SaveDirectory(std::string path);
  // Writes the model whole or not at all, then the tracker. tokenizer_directory: "" or where
  // tokenizer files are copied from.
  std::string save(int64_t iteration, const models::GptModel& model, DType type,
                   const std::string& tokenizer_directory) const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace megatron::training
