#include "training/model_source.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "checkpoint/fingerprint.h"
#include "checkpoint/packed_tensor.h"
#include "corpus/vocabulary.h"
#include "resume/found_checkpoints.h"
#include "settings/reading_flags.h"
#include "settings/recipes.h"
#include "tokenizers/chat/chat_template.h"
#include "tokenizers/tokenizer_file.h"
#include "training/whole_model.h"

namespace megatron::training {
namespace fs = std::filesystem;

namespace {

// Returns the files with these names in the directory, or next to the file, at a path; "" gives
// none.
NamedFiles files_at(const std::string& path, std::initializer_list<std::string_view> names) {
  NamedFiles files;
  if (path.empty()) return files;
  const fs::path directory = fs::is_directory(path) ? fs::path(path) : fs::path(path).parent_path();
  for (const std::string_view name : names)
    if (fs::exists(directory / name))
      files.emplace_back(name, read_file((directory / name).string()));
  return files;
}

}  // namespace

void ModelToRead::fields(Fields& f) {
  f.add("load", &load,
        "Hugging Face model directory, a PEFT adapter's, or the --save directory of a run");
  f.add("adapter", &adapter,
        "adapter for the model of --load: a directory with adapter_config.json and "
        "adapter_model.safetensors (PEFT), or the --save directory of a run with --lora-rank; "
        "without --load, for the base model that it names");
  settings::add_reading_flags(f, reading);
}

checkpoint::ModelDirectory ModelToRead::open(std::string_view purpose) const {
  MG_CHECK(load || adapter, "--load DIR is needed: the model {}", purpose);
  if (!adapter)
    return checkpoint::ModelDirectory(resume::resolve_model_directory(*load, "--load"), reading);
  const std::string own = resume::resolve_model_directory(*adapter, "--adapter");
  MG_CHECK(checkpoint::is_adapter(own),
           "--adapter is {}, which is not an adapter's directory: it needs {} and {} and no other "
           "weights; give a whole model with --load",
           *adapter, checkpoint::kAdapterConfig, checkpoint::kAdapterFile);
  checkpoint::ReadingOptions options = reading;
  if (load) options.base = resume::resolve_model_directory(*load, "--load");
  MG_CHECK(!checkpoint::is_adapter(options.base),
           "--load is {}, an adapter itself, and --adapter is {}: give the directory of a whole "
           "model with --load, or one of the adapters alone",
           load.value_or(""), *adapter);
  return checkpoint::ModelDirectory(own, options);
}

std::string tokenizer_directory(const checkpoint::ModelDirectory& directory) {
  const bool own = !directory.is_adapter() || tokenizers::has_tokenizer_file(directory.path());
  return own ? directory.path() : directory.base_path();
}

std::string chat_template_directory(const checkpoint::ModelDirectory& directory) {
  const bool own =
      !directory.is_adapter() || !tokenizers::ChatTemplate::load(directory.path()).empty();
  return own ? directory.path() : directory.base_path();
}

void require_whole_model(const checkpoint::ModelDirectory& directory, ThreadPool& pool) {
  resume::require_whole_model(directory.path(), pool);
  if (directory.is_adapter()) resume::require_whole_model(directory.base_path(), pool);
}

Json fingerprint(const checkpoint::ModelDirectory& directory) {
  Json::Array prints = {checkpoint::fingerprint(directory.path())};
  if (!directory.is_adapter()) return prints[0];
  prints.emplace_back(checkpoint::fingerprint(directory.base_path()));
  return prints;
}

ShapeSource directory_source(const std::string& directory) {
  ShapeSource source{.name = directory, .directory = directory};
  if (checkpoint::is_adapter(directory)) {
    source.config = checkpoint::ModelDirectory(directory).config();
    return source;
  }
  source.config = Json::read_python(source.path());
  if (source.config.is_object()) checkpoint::take_packing(source.config, source.path());
  return source;
}

ShapeSource config_source(const settings::TrainSettings& s) {
  ShapeSource source{.name = *s.run.model_config};
  if (const auto text = settings::model_config_text(source.name)) {
    source.config = Json::parse(*text, source.name);
  } else {
    const std::vector<std::string> names = settings::model_config_names();
    const std::string near = nearest(source.name, names);
    MG_CHECK(fs::is_regular_file(source.name),
             "--model-config is {}, which is not a file{}; give a config.json, or one of {}",
             source.name, near.empty() ? "" : fmt::format(" (did you mean {}?)", near),
             fmt::join(names, ", "));
    source.config = Json::read_python(source.name);
  }
  if (!s.shape.vocab_size) return source;
  MG_CHECK(
      source.config.is_object() && source.config.contains("vocab_size"),
      "--model-config {} has no vocab_size that --vocab-size {} could replace; drop one of them",
      source.name, *s.shape.vocab_size);
  source.config.set("vocab_size", *s.shape.vocab_size);
  return source;
}

NamedFiles tokenizer_files(const std::string& path) {
  NamedFiles files =
      files_at(path, {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                      "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model",
                      "spiece.model", "vocab.txt", "tiktoken_config.json"});
  if (path.empty() || (fs::is_directory(path) && !tokenizers::has_tokenizer_file(path)))
    return files;
  const std::string file = tokenizers::read_tokenizer_file(path).path,
                    name = fs::path(file).filename().string();
  if (std::ranges::find(files, name, &NamedFiles::value_type::first) == files.end())
    files.emplace_back(name, read_file(file));
  return files;
}

NamedFiles chat_template_files(const std::string& path) {
  return files_at(path, {"chat_template.jinja", "chat_template.json"});
}

NamedFiles generation_files(const std::string& path) {
  return files_at(path, {"generation_config.json"});
}

std::vector<std::string> companion_files(const std::string& directory) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    const bool weights = name == checkpoint::kIndex || name.ends_with(".safetensors") ||
                         checkpoint::is_torch_weights(name);
    if (entry.is_regular_file() && !weights && name != checkpoint::kConfig &&
        name != checkpoint::kTrainerState)
      paths.push_back(entry.path().string());
  }
  std::ranges::sort(paths);
  return paths;
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

ModelTokenizer open_tokenizer(settings::TokenizerSettings flags, const std::string& model_directory,
                              int64_t vocab_size) {
  const bool named = flags.tokenizer_type || flags.tokenizer_model || flags.vocab_file;
  if (!named) flags.tokenizer_model = tokenizer_path({}, model_directory);
  corpus::Vocabulary vocabulary = corpus::open_vocabulary(flags, vocab_size);
  report_missing_tokens(vocabulary.tokenizer->vocabulary_size(), vocab_size);
  return {std::move(vocabulary.tokenizer),
          vocabulary.directory.empty() ? model_directory : std::move(vocabulary.directory)};
}

void report_missing_tokens(int64_t tokenizer_size, int64_t vocab_size) {
  // Multiple to which publishers pad, and the largest padding.
  constexpr int64_t kMultiple = 64, kMaxPadding = 1024;
  const int64_t missing = vocab_size - tokenizer_size;
  if (missing <= 0 || (vocab_size % kMultiple == 0 && missing < kMaxPadding)) return;
  log::warning(
      "the tokenizer has {} tokens, but the model has {}: the ids from {} on have no text (is it "
      "the tokenizer of this model?)",
      tokenizer_size, vocab_size, tokenizer_size);
}

namespace {

void fill(const models::Stage& stage, const WholeModel& whole,
          const checkpoint::ModelDirectory& directory, uint64_t seed, Stream& stream, bool tells) {
  const std::vector<std::string> absent = absent_states(whole, directory);
  if (!absent.empty()) {
    nn::initialize(stage.states(), seed, stream);
    if (tells) log::warning("{}", absent_states_text(directory.path(), absent));
  }
  load_weights(directory, checkpoint::held(models::tensors_of(stage)), whole,
               {.absent = absent, .tells = tells});
}

}  // namespace

std::unique_ptr<models::Stage> load_model(const checkpoint::ModelDirectory& directory,
                                          const models::Model& model, Runtime& runtime, DType type,
                                          uint64_t seed) {
  auto stage = model.build(runtime, type, seed);
  fill(*stage, whole_model(*stage), directory, seed, runtime.stream(), true);
  return stage;
}

std::unique_ptr<models::Stage> load_model(const checkpoint::ModelDirectory& directory,
                                          const models::Model& model,
                                          const inference::EngineGroups& ranks, Runtime& runtime,
                                          DType type, uint64_t seed) {
  auto stage = ranks.build(model, runtime, type, seed);
  const comm::Group* const all = ranks.ranks(false).all;
  fill(*stage, all != nullptr ? whole_model(model, type) : whole_model(*stage), directory, seed,
       runtime.stream(), all == nullptr || all->rank() == 0);
  return stage;
}

}  // namespace megatron::training
