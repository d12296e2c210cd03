// Where a model's weights and what lies next to them come from.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/model_directory.h"
#include "inference/engine_groups.h"
#include "models/stage.h"
#include "resume/save_directory.h"
#include "settings/settings.h"
#include "tokenizers/tokenizer.h"

namespace megatron::training {

// Where the tokenizer of a model lies: `given` (--tokenizer-model), or the model's directory.
// Throws Error when neither holds one.
std::string tokenizer_path(const std::optional<std::string>& given,
                           const std::string& model_directory);

// The tokenizer of a model: the one that flags name, by Megatron-LM's rules, or that of the model's
// directory.
struct ModelTokenizer {
  std::shared_ptr<const tokenizers::Tokenizer> tokenizer;
  std::string path;  // the tokenizer's directory or file, or the model's for one without files
};
// Throws Error if there is none or if it has more tokens than the model.
ModelTokenizer open_tokenizer(settings::TokenizerSettings flags, const std::string& model_directory,
                              int64_t vocab_size);
// Warns if a model has more tokens than its tokenizer and the usual padding of a vocabulary.
void report_missing_tokens(int64_t tokenizer_size, int64_t vocab_size);

// All of a model, with the weights of a directory.
std::unique_ptr<models::Stage> load_model(const checkpoint::ModelDirectory& directory,
                                          const models::Model& model, Runtime& runtime, DType type,
                                          uint64_t seed);
// This rank's part of a model that ranks divide.
std::unique_ptr<models::Stage> load_model(const checkpoint::ModelDirectory& directory,
                                          const models::Model& model,
                                          const inference::EngineGroups& ranks, Runtime& runtime,
                                          DType type, uint64_t seed);

// What describes a model besides flags.
struct ShapeSource {
  std::string name;       // for messages: the directory, or what --model-config names
  std::string directory;  // where config.json has a tokenizer and others beside it; "": nowhere
  Json config;

  explicit operator bool() const { return !name.empty(); }  // else flags give the shape
  // What errors call the config.
  std::string path() const { return directory.empty() ? name : directory + "/config.json"; }
};
ShapeSource directory_source(const std::string& directory);
// Of --model-config, with the number of tokens of --vocab-size, where it is given. Throws Error
// for a name that is neither a file's nor that of a published model.
ShapeSource config_source(const settings::TrainSettings& settings);

// Files by name, and their content.
using NamedFiles = std::vector<std::pair<std::string, std::string>>;

// Files of a directory, or of the one that a tokenizer's file lies in; "" gives none: how text
// becomes tokens, how a chat becomes text, how text is generated.
NamedFiles tokenizer_files(const std::string& path);
NamedFiles chat_template_files(const std::string& path);
NamedFiles generation_files(const std::string& path);

}  // namespace megatron::training
