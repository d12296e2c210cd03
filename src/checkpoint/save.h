// Writing a checkpoint directory: by all ranks at once, whole or not at all.
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

// What lies in the directory. All ranks give the same but for what they hold of the tensors:
// weights (model.safetensors, or shards with an index) and optimizer state
// (optimizer-00001-of-00002.safetensors, always so numbered).
struct Contents {
  Json config;                        // config.json
  std::vector<HeldTensor> model;      // of this rank
  std::vector<HeldTensor> optimizer;  // of this rank
  // The tensors of all ranks, in the order of their files; empty: every rank holds all. Together
  // the ranks hold every element, and each element of a tensor equally often (replicas hold the
  // same; they may cut it in different places).
  std::vector<WholeTensor> whole_model, whole_optimizer;
  std::function<DType(const std::string& name)>
      dtype;                             // of a weight on disk; default: the tensor's
  const ModelDirectory* like = nullptr;  // keep its shard map and metadata
  std::function<std::string(const std::string& name)>
      name_in_like;  // of a weight; default: the same
  int64_t shard_bytes = int64_t{5} << 30;
  std::vector<std::string> copied_files;  // paths, to be put next to the weights
  std::vector<std::pair<std::string, std::string>> written_files;  // names and content
  // trainer_state.json; the save adds "format" where it has none, "files" (bytes and checksums of
  // every other file) and its own checksum. None: a plain Hugging Face directory without such a
  // file.
  std::optional<Json> trainer_state;

  // Of all files together; what a disk must have room for. The same on every rank.
  int64_t total_bytes() const;
};

// One save. The files are a function of the tensors alone: any number of ranks and any layout
// writes the same bytes. Each tensor is written by one rank, straight to its place in its file: by
// one that holds it whole, if any, and all ranks share the bytes. What its writer lacks of a tensor
// comes from the ranks that hold it, in the constructor: so much of the write is in memory then,
// about total_bytes() / ranks, or less where ranks hold tensors whole.
//
//   Save save(path, contents, ranks, stream, files, Save::Snapshot::none);   // collective
//   save.write();                                                            // each rank by itself
//   save.finish();                                                           // collective
//
// Files go to `<path>.tmp`, which rank 0 makes (what an ended run left there is removed first).
// finish() puts the checksums together, writes trainer_state.json, flushes the directory, renames
// it to `path` (an older directory of that name changes places with it and is then removed) and
// flushes the parent. Only what has a trainer_state.json to write takes the place of another
// directory; of a plain model directory, and where `path` is no directory, that it exists is an
// Error.
class Save {
 public:
  // copy: write() needs nothing of the run's tensors any more, which may change meanwhile; this
  // rank copies what it is to write, and nothing else: about total_bytes() / ranks.
  enum class Snapshot { none, copy };

  // Collective. Throws Error, on every rank alike, when the directory cannot be made, the disk has
  // no room for total_bytes(), or the ranks' tensors are not together those of all ranks: naming
  // one that is surplus or of another shape, or those of which elements are missing or double.
  Save(std::string path, Contents contents, comm::Group& ranks, Stream& stream,
       const FileSystem& files, Snapshot snapshot);
  ~Save();  // without finish(): what was written is removed
  Save(const Save&) = delete;
  Save& operator=(const Save&) = delete;

  // Writes and flushes this rank's share. No communication; may run on another thread, once. A
  // failure is kept for finish().
  void write() noexcept;
  bool failed() const;  // of write() on this rank
  // Throws Error, on every rank the text of the first rank that failed; then nothing has changed
  // under `path`, and what was written is removed.
  void finish();

  const std::string& path() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// All of it, by one rank.
void save(const std::string& path, Contents contents, Stream& stream);

// Where names cannot be exchanged, an older checkpoint is called `<path>.being-replaced` for a
// moment. Those that an ended process left so in `folder` get their names back, or are removed when
// the new one is there. For one process, before it looks for checkpoints there. Throws Error.
void restore_replaced(const std::string& folder, const FileSystem& files);

// Throws Error, naming both numbers and `what` to change, when the disk of `folder` (which exists)
// has no room for `bytes`.
void check_room(const std::string& folder, int64_t bytes, const FileSystem& files,
                std::string_view what);

}  // namespace megatron::checkpoint
