#include "checkpoint/model_directory.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint_directory.h"
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

// A name without folders, so that an index cannot refer to files outside its directory.
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
    std::string_view name = file.as_string();
    if (name.starts_with("./")) name.remove_prefix(2);
    MG_CHECK(is_file_name(name, ending),
             "'{}': tensor '{}' is listed in {}, which is not a plain file name ending in {}", path,
             tensor, file.dump(), ending);
    shard_of.emplace(tensor, name);
  }
  return shard_of;
}

// Returns the part of a shard's file name that all shards of one set of weights share:
// "model--of-00004.safetensors" for "model-00003-of-00004.safetensors". Returns "" for a name of
// another form.
std::string series_of(std::string_view name) {
  const size_t of = name.rfind("-of-"),
               dash = of == name.npos || of == 0 ? of : name.rfind('-', of - 1);
  if (of == name.npos || dash == name.npos || dash + 1 == of) return {};
  const std::string_view number = name.substr(dash + 1, of - dash - 1);
  const bool digits = std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; });
  return digits ? fmt::format("{}{}", name.substr(0, dash + 1), name.substr(of)) : std::string();
}

// The directory of an adapter's base model.
std::string base_of(const Json& adapter, const std::string& path, const ReadingOptions& options) {
  if (!options.base.empty()) return options.base;
  const Json* named = adapter.find("base_model_name_or_path");
  MG_CHECK(named != nullptr && named->is_string() && !named->as_string().empty(),
           "'{}/{}' does not name its base model (base_model_name_or_path): give the model's "
           "directory (--load, or --model in training) and this one with --adapter",
           path, kAdapterConfig);
  const std::string base = named->as_string();
  std::error_code error;
  for (const std::string& candidate : {base, path + "/" + base})
    if (fs::is_directory(candidate, error)) return candidate;
  fail(
      "'{}/{}' names '{}' as its base model, and there is no such directory relative to this "
      "directory or to the adapter's: give the model's directory (--load, or --model in training) "
      "and this one with --adapter",
      path, kAdapterConfig, base);
}

}  // namespace

bool is_adapter(const std::string& path) {
  const auto has = [&](std::string_view name) { return present(path + "/" + std::string(name)); };
  const bool whole = has(kSingleFile) || has(kIndex) || has(kTorchFile) || has(kTorchIndex);
  return !whole && has(kAdapterConfig) && (has(kAdapterFile) || has(kTorchAdapterFile));
}

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

ModelDirectory::ModelDirectory(std::string path, const ReadingOptions& options)
    : path_(std::move(path)), options_(options) {
  std::error_code error;
  MG_CHECK(present(path_), "the model directory '{}' does not exist", path_);
  MG_CHECK(fs::is_directory(path_, error),
           "'{}' is not a directory; a model is a directory with config.json and {}", path_,
           kSingleFile);
  if (checkpoint::is_adapter(path_)) {
    open_adapter();
    return;
  }
  MG_CHECK(options_.base.empty(),
           "'{}' has no {} and {}: it is not an adapter for the model in '{}'", path_,
           kAdapterConfig, kAdapterFile, options_.base);
  open_model();
}

void ModelDirectory::open_model() {
  const bool configured = present(path_ + "/config.json");
  MG_CHECK(configured || !present(path_ + "/" + std::string(kAdapterConfig)),
           "'{}' has {}, but neither {} nor {}: download the adapter again", path_, kAdapterConfig,
           kAdapterFile, kTorchAdapterFile);
  MG_CHECK(configured, "'{}' has no config.json: it is not a model directory", path_);
  config_ = Json::read_python(path_ + "/config.json");
  MG_CHECK(config_.is_object(), "'{}/config.json' is not a JSON object", path_);
  const std::optional<Packing> packing = take_packing(config_, path_ + "/config.json");

  find_weights();
  const bool strict = is_checkpoint(path_);
  const std::string_view ending = torch_ ? kTorchEnding : kEnding;
  const ShardMap index =
      indexed_ ? read_index(path_ + "/" + std::string(this->index()), ending) : ShardMap();
  const std::string single(torch_ ? kTorchFile : kSingleFile);
  tensors_ = TensorFiles(path_, indexed_ ? files_of_index(index, strict) : std::vector{single});
  place_tensors(index, strict);
  metadata_ = tensors_.file(0).metadata();
  if (packing) join_packed(*packing);
}

void ModelDirectory::open_adapter() {
  const std::string file = path_ + "/" + std::string(kAdapterConfig);
  const Json adapter = Json::read(file);
  MG_CHECK(adapter.is_object(), "'{}' is not a JSON object", file);
  const std::string base = base_of(adapter, path_, options_);
  MG_CHECK(!checkpoint::is_adapter(base),
           "'{}' names '{}' as its base model, which is an adapter itself: merge that one first "
           "(megatron merge-adapter)",
           file, base);
  const std::string own = std::exchange(path_, base);
  open_model();
  path_ = own;
  base_path_ = base;
  const std::string config = path_ + "/" + std::string(kConfig);
  const Json* task = adapter.find("task_type");
  const bool has_head =
      task != nullptr &&
      (*task == Json("SEQ_CLS") || *task == Json("TOKEN_CLS") || *task == Json("QUESTION_ANS"));
  if (has_head && present(config)) {
    config_ = Json::read_python(config);
    MG_CHECK(config_.is_object(), "'{}' is not a JSON object", config);
    // A copy of the base's says how the base is stored, which its own config.json has said.
    std::erase_if(config_.as_object(),
                  [](const Json::Member& key) { return key.first == "quantization_config"; });
  }
  config_.set(kAdapterConfig, adapter);
  const bool safetensors = present(path_ + "/" + std::string(kAdapterFile));
  const std::string weights(safetensors ? kAdapterFile : kTorchAdapterFile);
  tensors_.add(path_, weights);
  const TensorFile& added = tensors_.file(tensors_.names().size() - 1);
  metadata_ = added.metadata();
  for (const TensorInfo& info : added.tensors()) {
    MG_CHECK(info.name.starts_with(kAdapterPrefix),
             "'{}/{}' has the tensor '{}'; the names of an adapter's tensors begin with {}", path_,
             weights, info.name, kAdapterPrefix);
    shard_of_.emplace(info.name, weights);
  }
}

std::vector<std::string> ModelDirectory::weight_files() const {
  return is_adapter() ? std::vector{tensors_.names().back()} : tensors_.names();
}

void ModelDirectory::join_packed(const Packing& packing) {
  const size_t count = tensors_.join_packed(packing);
  for (const std::string& name : tensor_names()) {
    if (tensors_.packed(name) == nullptr) continue;
    const std::string values = fmt::format("{}{}", name, packing.values),
                      file = shard_of_.at(values);
    shard_of_.erase(values);
    shard_of_.erase(fmt::format("{}{}", name, packing.scales));
    shard_of_.emplace(name, file);
  }
  log::info("'{}' has {} tensors in {}: they are read as bf16 and saved in the type of the model",
            path_, count, packing.label);
}

// Selects the format to read, and whether to use its index.
void ModelDirectory::find_weights() {
  const auto has = [&](std::string_view name) { return present(path_ + "/" + std::string(name)); };
  const bool safetensors = has(kSingleFile) || has(kIndex),
             torch = has(kTorchFile) || has(kTorchIndex);
  MG_CHECK(safetensors || torch, "'{}' has no weights: none of {}, {}, {} and {} exists", path_,
           kSingleFile, kIndex, kTorchFile, kTorchIndex);
  torch_ = !safetensors;
  const std::string_view single = torch_ ? kTorchFile : kSingleFile;
  indexed_ = has(index());
  if (indexed_ && has(single)) {
    MG_CHECK(!is_checkpoint(path_),
             "'{}' has both {} and {}; remove the one that should not be used", path_, single,
             index());
    log::info("'{}' has both {} and {}: {} is read, as in transformers", path_, single, index(),
              single);
    indexed_ = false;
  }
  if (safetensors && torch)
    log::info("'{}' has two sets of weights: {} is read, {} is ignored", path_,
              indexed_ ? kIndex : single, has(kTorchFile) ? kTorchFile : kTorchIndex);
}

// Returns the existing files among those that the index names and the other shards of their series.
std::vector<std::string> ModelDirectory::files_of_index(const ShardMap& index, bool strict) const {
  std::set<std::string> names, series;
  std::vector<std::string> absent;
  for (const auto& [tensor, file] : index) names.insert(file);
  for (const std::string& name : names) {
    if (!present(path_ + "/" + name)) absent.push_back(name);
    if (const std::string one = series_of(name); !one.empty()) series.insert(one);
  }
  MG_CHECK(absent.empty() || (!strict && absent.size() < names.size()),
           "'{}' lacks files that are listed in {}: {}", path_, this->index(), counted(absent));
  for (const std::string& name : absent) names.erase(name);
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(path_, error)) {
    const std::string name = entry.path().filename().string();
    if (!strict && series.contains(series_of(name))) names.insert(name);
  }
  return {names.begin(), names.end()};
}

// Chooses the file that each tensor is read from. If several files hold a tensor, the file that the
// index names is used.
void ModelDirectory::place_tensors(const ShardMap& index, bool strict) {
  std::map<std::string_view, std::vector<size_t>> holders;
  for (size_t i = 0; i < tensors_.names().size(); ++i)
    for (const TensorInfo& info : tensors_.file(i).tensors()) holders[info.name].push_back(i);
  std::vector<std::string> not_there, not_named;
  for (const auto& [tensor, files] : holders) {
    const auto told = index.find(tensor);
    const auto named = std::ranges::find_if(files, [&](size_t i) {
      return told != index.end() && tensors_.names()[i] == told->second;
    });
    const size_t chosen = named == files.end() ? files[0] : *named;
    tensors_.choose(tensor, chosen);
    shard_of_.emplace(tensor, tensors_.names()[chosen]);
    for (const size_t i : files)
      if (indexed_ && (named == files.end() || i != chosen))
        not_named.push_back(fmt::format("{}: {}", tensors_.names()[i], tensor));
    if (named == files.end() && files.size() > 1)
      trouble_.emplace(tensor, fmt::format("it is in '{}' and in '{}', and the index lists neither",
                                           tensors_.names()[files[0]], tensors_.names()[files[1]]));
  }
  for (const auto& [tensor, file] : index) {
    const auto found = holders.find(tensor);
    const bool opened = std::ranges::find(tensors_.names(), file) != tensors_.names().end();
    if (found == holders.end())
      trouble_.emplace(tensor, fmt::format("the index says that it is in '{}', which {}", file,
                                           opened ? "does not contain it" : "does not exist"));
    if (shard_of_.contains(tensor) ? shard_of_.find(tensor)->second != file : true)
      not_there.push_back(fmt::format("{}: {}", file, tensor));
  }
  if (not_there.empty() && not_named.empty()) return;
  disagreement_ = fmt::format(
      "{} of '{}' does not match its files. Listed in the index but not in the file: {}. In a file "
      "but not listed so in the index: {}",
      this->index(), path_, counted(not_there), counted(not_named));
  MG_CHECK(!strict, "{}", disagreement_);
}

const std::string* ModelDirectory::trouble(std::string_view tensor) const {
  const auto found = trouble_.find(tensor);
  return found == trouble_.end() ? nullptr : &found->second;
}

}  // namespace megatron::checkpoint
