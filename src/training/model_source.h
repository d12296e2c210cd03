// Where a model's weights and what lies next to them come from.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/model_directory.h"
#include "models/stage.h"
#include "resume/save_directory.h"

namespace megatron::training {

// Where the tokenizer of a model lies: `given` (--tokenizer-model), or the model's directory.
// Throws Error when neither holds one.
std::string tokenizer_path(const std::optional<std::string>& given,
                           const std::string& model_directory);

// All of a model, with the weights of a directory.
std::unique_ptr<models::Stage> load_model(const checkpoint::ModelDirectory& directory,
                                          const models::Model& model, Runtime& runtime, DType type,
                                          uint64_t seed);

// Files by name, and their content.
using NamedFiles = std::vector<std::pair<std::string, std::string>>;

// Files of a directory, or of the one that a tokenizer's file lies in; "" gives none: how text
// becomes tokens, how a chat becomes text, how text is generated.
NamedFiles tokenizer_files(const std::string& path);
NamedFiles chat_template_files(const std::string& path);
NamedFiles generation_files(const std::string& path);

}  // namespace megatron::training
