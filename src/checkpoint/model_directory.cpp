#include "checkpoint/model_directory.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/name_list.h"

namespace megatron::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEnding = ".safetensors", kTorchStem = "pytorch_model",
                           kTorchEnding = ".bin";

using ShardMap = std::map<std::string, std::string, std::less<>>;

bool present(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// A name without folders, so that an index cannot lead out of its directory.
bool is_file_name(std::string_view name, std::string_view ending) {
  return name.ends_with(ending) && name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

ShardMap read_index(const std::string& path, std::string_view ending) {
  const Json index = Json::read(path);
  MG_CHECK(index.is_object(), "'{}' is not a JSON object", path);
  const Json* const weights = index.find("weight_map");
  MG_CHECK(weights != nullptr && weights->is_object(),
           "'{}': weight_map is missing or not an object", path);
  MG_CHECK(!weights->as_object().empty(), "'{}': weight_map is empty", path);
  ShardMap shard_of;
  for (const auto& [tensor, file] : weights->as_object()) {
    MG_CHECK(file.is_string(), "'{}': the file of tensor '{}' is not a string", path, tensor);
    MG_CHECK(is_file_name(file.as_string(), ending),
             "'{}': tensor '{}' is said to be in {}, which is not a plain file name ending in {}",
             path, tensor, file.dump(), ending);
    shard_of.emplace(tensor, file.as_string());
  }
  return shard_of;
}

}  // namespace

bool is_torch_weights(std::string_view file) {
  return file == kTorchIndex || (file.starts_with(kTorchStem) && file.ends_with(kTorchEnding));
}

std::string safetensors_name(std::string_view file) {
  if (file == kTorchIndex) return std::string(kIndex);
  if (!file.ends_with(kTorchEnding)) return std::string(file);
  const bool standard = is_torch_weights(file);
  file.remove_suffix(kTorchEnding.size());
  if (standard) file.remove_prefix(kTorchStem.size());
  return fmt::format("{}{}{}", standard ? "model" : "", file, kEnding);
}

ModelDirectory::ModelDirectory(std::string path) : path_(std::move(path)) {
  std::error_code error;
  MG_CHECK(present(path_), "the model directory '{}' does not exist", path_);
  MG_CHECK(fs::is_directory(path_, error),
           "'{}' is not a directory; a model is a directory with config.json and {}", path_,
           kSingleFile);
  MG_CHECK(present(path_ + "/config.json"), "'{}' has no config.json: it is not a model directory",
           path_);
  config_ = Json::read(path_ + "/config.json");
  MG_CHECK(config_.is_object(), "'{}/config.json' is not a JSON object", path_);
  const bool packed = take_mxfp4(config_, path_ + "/config.json");

  find_weights();
  const std::string single(torch_ ? kTorchFile : kSingleFile);
  tensors_ = TensorFiles(path_, indexed_ ? files_of_index() : std::vector{single});
  check_index();
  metadata_ = tensors_.file(0).metadata();
  if (packed) join_mxfp4();
}

void ModelDirectory::join_mxfp4() {
  const size_t count = tensors_.join_mxfp4();
  for (const std::string& name : tensor_names()) {
    if (tensors_.mxfp4(name) == nullptr) continue;
    shard_of_.emplace(name, shard_of_.at(name + std::string(kMxfp4Blocks)));
    for (const std::string_view part : {kMxfp4Blocks, kMxfp4Scales})
      shard_of_.erase(name + std::string(part));
  }
  log::info(
      "'{}' has {} tensors in MXFP4: they are read as bf16 and saved in the type of the model",
      path_, count);
}

// Which format is read, and whether by its index.
void ModelDirectory::find_weights() {
  const auto has = [&](std::string_view name) { return present(path_ + "/" + std::string(name)); };
  const bool safetensors = has(kSingleFile) || has(kIndex),
             torch = has(kTorchFile) || has(kTorchIndex);
  MG_CHECK(safetensors || torch, "'{}' has no weights: none of {}, {}, {} and {} is there", path_,
           kSingleFile, kIndex, kTorchFile, kTorchIndex);
  torch_ = !safetensors;
  const std::string_view single = torch_ ? kTorchFile : kSingleFile;
  indexed_ = has(index());
  MG_CHECK(!indexed_ || !has(single),
           "'{}' has both {} and {}; remove the one that is not to be used", path_, single,
           index());
  if (safetensors && torch)
    log::info("'{}' has weights twice: {} is read, {} is not", path_, indexed_ ? kIndex : single,
              has(kTorchFile) ? kTorchFile : kTorchIndex);
}

// Fills shard_of_; returns the files in it, which are all there.
std::vector<std::string> ModelDirectory::files_of_index() {
  shard_of_ = read_index(path_ + "/" + std::string(index()), torch_ ? kTorchEnding : kEnding);
  std::set<std::string> names;
  for (const auto& [tensor, file] : shard_of_) names.insert(file);
  std::vector<std::string> absent;
  for (const std::string& name : names) {
    if (!present(path_ + "/" + name)) absent.push_back(name);
  }
  MG_CHECK(absent.empty(), "'{}' lacks files that {} names: {}", path_, index(), counted(absent));
  return {names.begin(), names.end()};
}

// Each tensor lies in the file that the index names, and in no other.
void ModelDirectory::check_index() {
  std::vector<std::string> surplus, missing;
  std::map<std::string_view, const TensorFile*> files;
  for (size_t i = 0; i < tensors_.names().size(); ++i) {
    const std::string& name = tensors_.names()[i];
    files.emplace(name, &tensors_.file(i));
    for (const TensorInfo& info : tensors_.file(i).tensors()) {
      const auto shard =
          indexed_ ? shard_of_.find(info.name) : shard_of_.emplace(info.name, name).first;
      if (shard == shard_of_.end() || shard->second != name)
        surplus.push_back(name + ": " + info.name);
    }
  }
  for (const auto& [tensor, file] : shard_of_) {
    if (files.at(file)->find(tensor) == nullptr) missing.push_back(file + ": " + tensor);
  }
  MG_CHECK(missing.empty() && surplus.empty(),
           "{} of '{}' and its files do not agree. Named by the index but not in the file: {}. "
           "In a file but not so named by the index: {}",
           index(), path_, counted(missing), counted(surplus));
}

}  // namespace megatron::checkpoint
