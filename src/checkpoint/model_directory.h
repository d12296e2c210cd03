// A Hugging Face model directory: config.json, model.safetensors or shards with an index, tokenizer
// files.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "parallel/placement.h"

namespace megatron::checkpoint {

class ModelDirectory {
 public:
  // Opens and checks config.json, the index and every file it names. Throws Error naming what is
  // missing, surplus (a tensor in a shard but not in the index, or the reverse) or damaged.
  explicit ModelDirectory(std::string path);

  const std::string& path() const { return path_; }
  const Json& config() const { return config_; }
  std::vector<std::string> tensor_names() const;        // in the order of the files
  const TensorInfo* find(std::string_view name) const;  // null when absent
  std::span<const std::byte> bytes(std::string_view name) const;
  // File name of each tensor: a directory that is written again keeps it.
  const std::map<std::string, std::string, std::less<>>& shard_map() const { return shard_of_; }
  const std::vector<std::pair<std::string, std::string>>& metadata() const {
    return metadata_;
  }  // of the first file

 private:
  std::string path_;
  Json config_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, std::string, std::less<>> shard_of_;
  std::map<std::string, std::pair<size_t, const TensorInfo*>, std::less<>> tensors_;
  std::vector<std::pair<std::string, std::string>> metadata_;
};

// Fills each parameter from the tensors its placement names, converted to its type. Every tensor of
// the model must be there with the shape its placement says, and every tensor there must belong to
// the model, but for the names in `ignored`: one Error lists all that is missing, surplus or of
// another shape.
void load(const ModelDirectory& directory, std::span<parallel::Placed* const> parameters,
          std::span<const std::string> ignored = {});

struct SaveOptions {
  std::function<DType(const std::string& name)> dtype;  // type on disk; default: the parameter's
  const ModelDirectory* like = nullptr;                 // keep its shard map and metadata
  int64_t shard_bytes = int64_t{5} << 30;               // a new directory: shards above this size
  // Tokenizer and generation files to put beside the weights: paths, and names with content.
  std::vector<std::string> copied_files;
  std::vector<std::pair<std::string, std::string>> written_files;
};

// Writes the directory whole or not at all: to a temporary directory beside it, flushed, then
// renamed. Throws Error when `path` exists. A tensor held in parts (placements) is put together;
// parameters that no part covers (padding) are left out.
void save(const std::string& path, const Json& config,
          std::span<parallel::Placed* const> parameters, const SaveOptions& options);

}  // namespace megatron::checkpoint
