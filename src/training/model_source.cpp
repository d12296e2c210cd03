#include "training/model_source.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "tokenizers/tokenizer_file.h"

namespace megatron::training {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kTracker = "latest_checkpointed_iteration.txt";

std::string iteration_name(int64_t iteration) { return fmt::format("iter_{:07d}", iteration); }

int64_t read_tracker(const std::string& file) {
  const std::string text = read_file(file);
  const std::string_view digits =
      std::string_view(text).substr(0, text.find_last_not_of(" \r\n\t") + 1);
  int64_t iteration = -1;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), iteration);
  MG_CHECK(error == std::errc() && end == digits.data() + digits.size() && iteration >= 0,
           "{} holds '{}', which is not an iteration number", file, digits.substr(0, 40));
  return iteration;
}

}  // namespace

std::vector<std::string> companion_files(const std::string& path) {
  if (path.empty()) return {};
  const fs::path given(path);
  const fs::path directory = fs::is_directory(given) ? given : given.parent_path();
  std::vector<std::string> files;
  for (const auto name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json",
        "merges.txt", "tokenizer.model", "spiece.model", "vocab.txt", "tiktoken_config.json",
        "chat_template.jinja", "generation_config.json"}) {
    if (fs::exists(directory / name)) files.push_back((directory / name).string());
  }
  if (fs::is_directory(given) && !tokenizers::has_tokenizer_file(path)) return files;
  const tokenizers::TokenizerFile tokenizer = tokenizers::read_tokenizer_file(path);
  if (std::ranges::find(files, tokenizer.path) == files.end()) files.push_back(tokenizer.path);
  return files;
}

std::string resolve_model_directory(const std::string& path) {
  MG_CHECK(fs::is_directory(path),
           "{} is not a directory; a Hugging Face model directory or a --save directory is wanted",
           path);
  if (fs::exists(fs::path(path) / "config.json")) return path;
  const std::string tracker = (fs::path(path) / kTracker).string();
  MG_CHECK(fs::exists(tracker),
           "{} holds neither config.json (a Hugging Face model) nor {} (a --save directory)", path,
           kTracker);
  const std::string directory = (fs::path(path) / iteration_name(read_tracker(tracker))).string();
  MG_CHECK(fs::exists(fs::path(directory) / "config.json"), "{} names {}, which holds no model",
           tracker, directory);
  return directory;
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

std::unique_ptr<models::GptModel> load_model(const checkpoint::ModelDirectory& directory,
                                             const models::GptConfig& config, Runtime& runtime,
                                             DType type, uint64_t seed) {
  auto model = std::make_unique<models::GptModel>(config, runtime, type, seed);
  checkpoint::load(directory, model->parameters());
  return model;
}

SaveDirectory::SaveDirectory(std::string path) : path_(std::move(path)) {
  if (!fs::exists(path_)) return;
  MG_CHECK(fs::is_directory(path_), "--save {} is a file; a directory is wanted", path_);
  const std::string tracker = (fs::path(path_) / kTracker).string();
  if (fs::exists(tracker)) {
    fail(
        "--save {} holds a run's checkpoints up to iteration {}, which this run would overwrite; "
        "choose another --save or remove it",
        path_, read_tracker(tracker));
  }
  MG_CHECK(fs::is_empty(path_),
           "--save {} is not empty and is no checkpoint directory of this program; choose another",
           path_);
}

void SaveDirectory::create() const {
  std::error_code error;
  fs::create_directories(path_, error);
  MG_CHECK(!error && access(path_.c_str(), W_OK) == 0, "--save {} cannot be written: {}", path_,
           error ? error.message() : std::strerror(errno));
}

std::string SaveDirectory::save(int64_t iteration, const models::GptModel& model,
                                const Json& config, const Companions& companions) const {
  const std::string directory = (fs::path(path_) / iteration_name(iteration)).string();
  create();
  checkpoint::SaveOptions options;
  options.copied_files = companions.copied;
  options.written_files = companions.written;
  checkpoint::save(directory, config, model.parameters(), options);
  write_file((fs::path(path_) / kTracker).string(), std::to_string(iteration));
  return directory;
}

}  // namespace megatron::training
