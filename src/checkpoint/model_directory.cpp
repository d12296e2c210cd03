#include "checkpoint/model_directory.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "checkpoint/name_list.h"

namespace megatron::checkpoint {
namespace {

namespace fs = std::filesystem;

using ShardMap = std::map<std::string, std::string, std::less<>>;

bool present(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// A name without folders, so that an index cannot lead out of its directory.
bool is_file_name(std::string_view name) {
  return name.ends_with(".safetensors") &&
         name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

ShardMap read_index(const std::string& path) {
  const Json index = Json::read(path);
  MG_CHECK(index.is_object(), "'{}' is not a JSON object", path);
  const Json* const weights = index.find("weight_map");
  MG_CHECK(weights != nullptr && weights->is_object(),
           "'{}': weight_map is missing or not an object", path);
  MG_CHECK(!weights->as_object().empty(), "'{}': weight_map is empty", path);
  ShardMap shard_of;
  for (const auto& [tensor, file] : weights->as_object()) {
    MG_CHECK(file.is_string(), "'{}': the file of tensor '{}' is not a string", path, tensor);
    MG_CHECK(is_file_name(file.as_string()),
             "'{}': tensor '{}' is said to be in {}, which is not a plain file name ending in "
             ".safetensors",
             path, tensor, file.dump());
    shard_of.emplace(tensor, file.as_string());
  }
  return shard_of;
}

// Either the single file or the index has to be there. Returns whether it is the index.
bool needs_index(const std::string& path) {
  const bool single = present(path + "/" + std::string(kSingleFile)),
             index = present(path + "/" + std::string(kIndex));
  MG_CHECK(!single || !index, "'{}' has both {} and {}; remove the one that is not to be used",
           path, kSingleFile, kIndex);
  if (!single && !index) {
    const bool pickled =
        present(path + "/pytorch_model.bin") || present(path + "/pytorch_model.bin.index.json");
    fail("'{}' has no weights: neither {} nor {} is there{}", path, kSingleFile, kIndex,
         pickled ? "; pytorch_model.bin is not read: save the model with safe_serialization" : "");
  }
  return index;
}

}  // namespace

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

  indexed_ = needs_index(path_);
  std::set<std::string> names = {std::string(kSingleFile)};
  if (indexed_) {
    names.clear();
    shard_of_ = read_index(path_ + "/" + std::string(kIndex));
    for (const auto& [tensor, file] : shard_of_) names.insert(file);
    std::vector<std::string> absent;
    for (const std::string& name : names) {
      if (!present(path_ + "/" + name)) absent.push_back(name);
    }
    MG_CHECK(absent.empty(), "'{}' lacks files that {} names: {}", path_, kIndex, counted(absent));
  }
  tensors_ = TensorFiles(path_, std::vector<std::string>(names.begin(), names.end()));
  check_index();
  metadata_ = tensors_.file(0).metadata();
}

// Each tensor lies in the file that the index names, and in no other.
void ModelDirectory::check_index() {
  std::vector<std::string> surplus, missing;
  std::map<std::string_view, const SafetensorsFile*> files;
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
           kIndex, path_, counted(missing), counted(surplus));
}

}  // namespace megatron::checkpoint
