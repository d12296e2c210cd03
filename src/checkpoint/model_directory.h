// A Hugging Face model directory: config.json, weights in one file or in shards with an index,
// tokenizer files. Weights are safetensors files, or those that torch.save wrote (torch_file.h);
// where both are there, safetensors. Experts in MXFP4 (mxfp4.h), if config.json says so, are tensors
// like any other, of bf16.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/tensor_files.h"
#include "parallel/placement.h"

namespace megatron::checkpoint {

inline constexpr std::string_view kConfig = "config.json";
inline constexpr std::string_view kSingleFile = "model.safetensors";
inline constexpr std::string_view kIndex = "model.safetensors.index.json";
inline constexpr std::string_view kTorchFile = "pytorch_model.bin";
inline constexpr std::string_view kTorchIndex = "pytorch_model.bin.index.json";

// Whether a file is named as published weights of torch.save, or their index, are.
bool is_torch_weights(std::string_view file);
// The name of a file of weights, or of their index, in a directory that is written again, which is
// always safetensors: "model-00001-of-00002.safetensors" for "pytorch_model-00001-of-00002.bin".
std::string safetensors_name(std::string_view file);

class ModelDirectory {
 public:
  // Opens and checks config.json, the index and every file it names. Throws Error naming what is
  // missing, surplus (a tensor in a shard but not in the index, or the reverse) or damaged.
  explicit ModelDirectory(std::string path);

  const std::string& path() const { return path_; }
  const Json& config() const { return config_; }  // without quantization_config
  const TensorFiles& tensors() const { return tensors_; }
  std::vector<std::string> tensor_names() const { return tensors_.tensor_names(); }
  const TensorInfo* find(std::string_view name) const { return tensors_.find(name); }
  std::span<const std::byte> bytes(std::string_view name) const { return tensors_.bytes(name); }
  // File name of each tensor: a directory that is written again has it in safetensors_name() of it.
  const std::map<std::string, std::string, std::less<>>& shard_map() const { return shard_of_; }
  const std::vector<std::pair<std::string, std::string>>& metadata() const {
    return metadata_;
  }  // of the first file
  bool has_index() const { return indexed_; }  // whether the weights lie in shards
  bool is_torch() const { return torch_; }     // whether torch.save wrote them

 private:
  std::string_view index() const { return torch_ ? kTorchIndex : kIndex; }
  void find_weights();
  std::vector<std::string> files_of_index();
  void check_index();
  void join_mxfp4();

  std::string path_;
  Json config_;
  TensorFiles tensors_;
  std::map<std::string, std::string, std::less<>> shard_of_;
  bool indexed_ = false, torch_ = false;
  std::vector<std::pair<std::string, std::string>> metadata_;
};

// Fills what this rank holds of a model from the tensors that the placements name, converted to the
// values' types; nothing else is read. Every tensor of `whole` (the same on all ranks) must be
// there with its shape, and every tensor there must belong to it, but for the names in `ignored`:
// one Error lists all that is missing, surplus or of another shape, on every rank alike.
// progress: how many of `tensors` are filled.
void load(const ModelDirectory& directory, std::span<const HeldTensor> tensors,
          std::span<const WholeTensor> whole, std::span<const std::string> ignored = {},
          const std::function<void(int64_t)>& progress = {});
// The same of a model that is not divided.
void load(const ModelDirectory& directory, std::span<parallel::ParameterSpec* const> parameters,
          std::span<const std::string> ignored = {});

}  // namespace megatron::checkpoint
