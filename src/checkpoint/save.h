// Writes a checkpoint directory with all ranks at once, atomically.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file_system.h"
#include "base/json.h"
#include "checkpoint/held_tensor.h"
#include "checkpoint/model_directory.h"
#include "comm/group.h"

namespace megatron::checkpoint {

// Contents of the directory. All ranks pass the same, except for the parts of tensors that they
// hold: weights (model.safetensors, or shards with an index) and optimizer state
// (optimizer-00001-of-00002.safetensors, always numbered).
struct Contents {
  Json config;                        // config.json, or adapter_config.json
  bool is_adapter = false;            // of a base model: one file adapter_model.safetensors
  std::vector<HeldTensor> model;      // tensors of this rank
  std::vector<HeldTensor> optimizer;  // tensors of this rank
  // The tensors of all ranks in the order of their files; empty: every rank holds everything.
  // Together the ranks hold every element, and each element of a tensor equally often (replicas
  // hold the same elements, but may cut them in different places).
  std::vector<WholeTensor> whole_model, whole_optimizer;
  std::function<DType(const std::string& name)>
      dtype;                             // dtype of a weight on disk; default: the tensor's
  const ModelDirectory* like = nullptr;  // keeps its shard map and metadata
  std::function<std::string(const std::string& name)>
      name_in_like;  // name of a weight; default: the same
  int64_t shard_bytes = int64_t{5} << 30;
  std::vector<std::string> copied_files;  // paths of files to copy next to the weights
  std::vector<std::pair<std::string, std::string>> written_files;  // names and contents
  // Contents of trainer_state.json. The save adds "format" if absent, "files" (bytes and checksums
  // of every other file) and its own checksum. None: a plain Hugging Face directory without this
  // file.
  std::optional<Json> trainer_state;

  // Total size of all files, which the disk must have room for. The same on every rank.
  int64_t total_bytes() const;
};

// One save. The files are a function of the tensors alone: any number of ranks and any layout
// writes the same bytes. Each tensor is written by one rank, directly to its place in its file: by
// a rank that holds it whole, if any, and all ranks share the bytes. The constructor fetches the
// parts that a writer lacks from the ranks that hold them, so this much of the write is in memory
// from then on: about total_bytes() / ranks, or less if ranks hold tensors whole.
//
//   Save save(path, contents, ranks, stream, files, Save::Snapshot::none);   // collective
//   save.write();                                                            // each rank by itself
//   save.finish();                                                           // collective
//
// Files are written to `<path>.tmp`, which rank 0 creates after removing what a terminated run left
// there. finish() collects the checksums, writes trainer_state.json, flushes the directory, renames
// it to `path` (an older directory of that name is exchanged with it and then removed) and flushes
// the parent. Only a save with a trainer_state.json may replace another directory. For a plain
// model directory, or if `path` is not a directory, an existing `path` is an Error.
class Save {
 public:
  // copy: write() no longer needs the run's tensors, which may change meanwhile. The rank copies
  // only what it will write: about total_bytes() / ranks.
  enum class Snapshot { none, copy };

  // Collective. Throws Error, on every rank alike, if the directory cannot be made, if the disk has
  // no room for total_bytes(), or if the ranks' tensors do not add up to those of all ranks: names
  // a tensor that is surplus or of another shape, or tensors with missing or double elements.
  Save(std::string path, Contents contents, comm::Group& ranks, Stream& stream,
       const FileSystem& files, Snapshot snapshot);
  ~Save();  // without finish(), removes what was written
  Save(const Save&) = delete;
  Save& operator=(const Save&) = delete;

  // Writes and flushes this rank's share. No communication; may run on another thread, once. An
  // error is kept for finish().
  void write() noexcept;
  bool failed() const;  // whether write() failed on this rank
  // Throws Error, on every rank with the text of the first rank that failed; then nothing has
  // changed under `path`, and the written files are removed.
  void finish();

  const std::string& path() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Makes a whole save from one rank.
void save(const std::string& path, Contents contents, Stream& stream);

// On file systems that cannot exchange names, an older checkpoint is briefly renamed to
// `<path>.being-replaced`. Restores the names of those that a terminated process left in `folder`,
// or removes them if the new checkpoint exists. One process calls it before it looks for
// checkpoints there. Throws Error.
void restore_replaced(const std::string& folder, const FileSystem& files);

// Throws Error, naming both numbers and `what` to change, if the disk of `folder` (which exists)
// has no room for `bytes`.
void check_room(const std::string& folder, int64_t bytes, const FileSystem& files,
                std::string_view what);

}  // namespace megatron::checkpoint
