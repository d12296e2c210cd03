// A Hugging Face model directory: config.json, weights in one file or in shards with an index,
// tokenizer files. Weights are safetensors files, or files written by torch.save (torch_file.h); if
// both exist, safetensors are used. Quantized weights (packed_tensor.h), if config.json declares
// them, appear as bf16 tensors.
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
inline constexpr std::string_view kAdapterConfig = "adapter_config.json";
inline constexpr std::string_view kAdapterFile = "adapter_model.safetensors";
inline constexpr std::string_view kTorchAdapterFile = "adapter_model.bin";
inline constexpr std::string_view kAdapterPrefix = "base_model.model.";
inline constexpr std::string_view kTorchFile = "pytorch_model.bin";
inline constexpr std::string_view kTorchIndex = "pytorch_model.bin.index.json";

// True if a file has the name of published torch.save weights or of their index.
bool is_torch_weights(std::string_view file);
// Name of a file of weights, or of their index, when a directory is written again, which is always
// as safetensors: "model-00001-of-00002.safetensors" for "pytorch_model-00001-of-00002.bin".
std::string safetensors_name(std::string_view file);

// True if a directory has an adapter (PEFT's adapter_config.json and weights) and no whole model.
bool is_adapter(const std::string& path);

struct ReadingOptions {
  // Ignore tensors that the model does not have, instead of reporting them.
  bool ignore_surplus = false;
  // Directory of an adapter's base model; "": the one that its adapter_config.json names.
  std::string base = {};
};

// The directory of an adapter stands for the whole model: its tensors are those of the base model's
// directory and the adapter's own, which begin with "base_model.model.".
class ModelDirectory {
 public:
  // Opens and checks config.json and the weight files. If an index and its files disagree, the
  // files' contents count (disagreement()); in a checkpoint, which this program wrote, it is an
  // error. Throws Error naming what is missing or damaged.
  explicit ModelDirectory(std::string path, const ReadingOptions& options = {});

  const std::string& path() const { return path_; }
  // config.json, without quantization_config; that of an adapter's base model has
  // adapter_config.json under the key kAdapterConfig. An adapter that brings a head (task_type
  // SEQ_CLS, TOKEN_CLS, QUESTION_ANS) may have a config.json of its own, which is used instead.
  const Json& config() const { return config_; }
  bool is_adapter() const { return !base_path_.empty(); }
  // The directory that contains config.json; for an adapter the base model's, which also contains
  // the tokenizer if the adapter has none.
  const std::string& base_path() const { return is_adapter() ? base_path_ : path_; }
  // Names of the files of path() with configuration and weights.
  std::string_view config_file() const { return is_adapter() ? kAdapterConfig : kConfig; }
  std::vector<std::string> weight_files() const;
  const TensorFiles& tensors() const { return tensors_; }
  std::vector<std::string> tensor_names() const { return tensors_.tensor_names(); }
  const TensorInfo* find(std::string_view name) const { return tensors_.find(name); }
  std::span<const std::byte> bytes(std::string_view name) const { return tensors_.bytes(name); }
  const ReadingOptions& options() const { return options_; }
  // Sentence that says how the index and its files disagree; "" if they agree.
  const std::string& disagreement() const { return disagreement_; }
  // Reason why a tensor that the index or a file names cannot be read: "the index says that it is
  // in 'FILE', which does not exist". Null if it can be read, or if neither names it.
  const std::string* trouble(std::string_view tensor) const;
  // File name of each tensor. A directory that is written again has the tensor in the file
  // safetensors_name() of that name.
  const std::map<std::string, std::string, std::less<>>& shard_map() const { return shard_of_; }
  const std::vector<std::pair<std::string, std::string>>& metadata() const {
    return metadata_;
  }  // of the first file
  bool has_index() const { return indexed_; }  // whether the weights are in shards
  bool is_torch() const { return torch_; }     // whether torch.save wrote them

 private:
  void open_model();
  void open_adapter();
  std::string_view index() const { return torch_ ? kTorchIndex : kIndex; }
  void find_weights();
  using ShardMap = std::map<std::string, std::string, std::less<>>;
  std::vector<std::string> files_of_index(const ShardMap& index, bool strict) const;
  void place_tensors(const ShardMap& index, bool strict);
  void join_packed(const Packing& packing);

  std::string path_, base_path_;  // the latter: of an adapter only
  ReadingOptions options_;
  Json config_;
  TensorFiles tensors_;
  std::map<std::string, std::string, std::less<>> shard_of_, trouble_;
  std::string disagreement_;
  bool indexed_ = false, torch_ = false;
  std::vector<std::pair<std::string, std::string>> metadata_;
};

// Fills this rank's tensors from the stored tensors that their placements name, converted to the
// values' types; nothing else is read. Every tensor of `whole` (the same on all ranks) must exist
// with its shape, and every stored tensor must belong to it, except for the names in `ignored` and
// with ReadingOptions::ignore_surplus. One Error, the same on every rank, lists all tensors that
// are missing, surplus or of another shape or type. progress: how many of `tensors` are filled.
// Returns the names that were left out besides `ignored`.
std::vector<std::string> load(const ModelDirectory& directory, std::span<const HeldTensor> tensors,
                              std::span<const WholeTensor> whole,
                              std::span<const std::string> ignored = {},
                              const std::function<void(int64_t)>& progress = {});
// The same for a model that is not divided among ranks.
void load(const ModelDirectory& directory, std::span<parallel::ParameterSpec* const> parameters,
          std::span<const std::string> ignored = {});

}  // namespace megatron::checkpoint
