// A checkpoint on disk: a model directory with optimizer state and trainer_state.json.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/file_list.h"
#include "checkpoint/model_directory.h"

namespace megatron::checkpoint {

inline constexpr std::string_view kTrainerState = "trainer_state.json";
inline constexpr int64_t kFormat = 1;  // "format" of trainer_state.json; newer formats are refused

// True if the directory has a trainer_state.json, so that it is a checkpoint and not only a model.
bool is_checkpoint(const std::string& path);

class CheckpointDirectory {
 public:
  // Reads trainer_state.json and checks its checksum and format, then checks that every file it
  // lists exists with its number of bytes, and opens the tensors. Throws Error naming the file,
  // what is wrong and what to do; for a newer format, the program that wrote it.
  // base: of an adapter's checkpoint, the directory of its base model; "": the one that it names.
  explicit CheckpointDirectory(std::string path, const std::string& base = {});

  const std::string& path() const { return model_.path(); }
  const ModelDirectory& model() const { return model_; }
  const Json& trainer_state() const { return sealed_.state; }
  // As listed in trainer_state.
  const std::vector<ListedFile>& files() const { return sealed_.files; }
  bool has_optimizer() const { return !optimizer_.empty(); }
  std::vector<TensorInfo> optimizer_tensors() const;
  // As written, in hexadecimal; "" if there is none.
  std::string checksum(std::string_view tensor) const;

  // Checks the checksums of all files; if there are several callers, caller `part` of `parts`
  // checks its share of the bytes. Throws Error naming the first file (and tensor) that differs
  // from what was written.
  void verify(ThreadPool& pool, int part = 0, int parts = 1) const;

  // Fills the values from the stored tensors like checkpoint::load; `whole` is the state of all
  // ranks. Throws Error listing tensors that are missing, of a different shape, or surplus and not
  // `ignored`.
  void load_optimizer(std::span<const HeldTensor> tensors, std::span<const WholeTensor> whole,
                      std::span<const std::string> ignored = {}) const;
  // The same for tensors that are not divided among ranks.
  void load_optimizer(std::span<const HeldTensor> tensors) const;

 private:
  const TensorFile* find_tensors(std::string_view file) const;
  void check_tensors(const ListedFile& listed);
  void check_all_listed() const;

  Sealed sealed_;
  ModelDirectory model_;
  TensorFiles optimizer_;
  std::map<std::string_view, uint64_t, std::less<>> sums_;  // of tensors
};

}  // namespace megatron::checkpoint
