// Sources of a model's weights and of the files next to them.
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

// The model that a command reads.
struct ModelToRead {
  std::optional<std::string> load, adapter;
  checkpoint::ReadingOptions reading;

  void fields(Fields& f);  // --load, --adapter and how they are read
  // Opens --load, or the adapter in --adapter with --load as its base; `purpose`: "to evaluate".
  // Throws Error if neither is given.
  checkpoint::ModelDirectory open(std::string_view purpose) const;
};

// The first of the directories of a model, its own and its base model's, that has a tokenizer, or a
// chat template; its own if neither has one.
std::string tokenizer_directory(const checkpoint::ModelDirectory& directory);
std::string chat_template_directory(const checkpoint::ModelDirectory& directory);
// Compares the checksums of the model's files, and of its base model's, if they are checkpoints.
void require_whole_model(const checkpoint::ModelDirectory& directory, ThreadPool& pool);
// Fingerprints of the model's directory and of its base model's.
Json fingerprint(const checkpoint::ModelDirectory& directory);

// Paths of the files of a model's directory that are neither weights, config.json nor a
// checkpoint's state, in order.
std::vector<std::string> companion_files(const std::string& directory);

// Path of a model's tokenizer: `given` (--tokenizer-model), or the model's directory. Throws Error
// if neither holds one.
std::string tokenizer_path(const std::optional<std::string>& given,
                           const std::string& model_directory);

// The tokenizer of a model: the one named by flags, with Megatron-LM's rules, or that of the
// model's directory.
struct ModelTokenizer {
  std::shared_ptr<const tokenizers::Tokenizer> tokenizer;
  std::string path;  // the tokenizer's directory or file, or the model's for one without files
};
// Throws Error if there is none or if it has more tokens than the model.
ModelTokenizer open_tokenizer(settings::TokenizerSettings flags, const std::string& model_directory,
                              int64_t vocab_size);
// Warns if a model has more tokens than its tokenizer and the usual padding of a vocabulary.
void report_missing_tokens(int64_t tokenizer_size, int64_t vocab_size);

// Loads a whole model with the weights of a directory.
std::unique_ptr<models::Stage> load_model(const checkpoint::ModelDirectory& directory,
                                          const models::Model& model, Runtime& runtime, DType type,
                                          uint64_t seed);
// Loads this rank's part of a model that is divided among ranks.
std::unique_ptr<models::Stage> load_model(const checkpoint::ModelDirectory& directory,
                                          const models::Model& model,
                                          const inference::EngineGroups& ranks, Runtime& runtime,
                                          DType type, uint64_t seed);

// A source of a model's shape besides flags.
struct ShapeSource {
  std::string name;       // for messages: the directory, or the value of --model-config
  std::string directory;  // directory of config.json and the tokenizer; "": none
  Json config;

  explicit operator bool() const { return !name.empty(); }  // false: flags give the shape
  // Name of the config in errors.
  std::string path() const { return directory.empty() ? name : directory + "/config.json"; }
};
ShapeSource directory_source(const std::string& directory);
// Shape from --model-config, with --vocab-size tokens if given. Throws Error if the name is neither
// a file nor a published model.
ShapeSource config_source(const settings::TrainSettings& settings);

// Names and contents of files.
using NamedFiles = std::vector<std::pair<std::string, std::string>>;

// Files of a directory, or of the directory of a tokenizer's file, that define tokenization, chat
// formatting and generation; "" gives none.
NamedFiles tokenizer_files(const std::string& path);
NamedFiles chat_template_files(const std::string& path);
NamedFiles generation_files(const std::string& path);

}  // namespace megatron::training
