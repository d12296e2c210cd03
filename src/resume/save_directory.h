// A folder of checkpoints: DIR/iter_0000100/ and DIR/latest_checkpointed_iteration.txt; for a run
// with --gemm-tuning on also DIR/gemm_choices.json.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_system.h"

namespace megatron::resume {

class SaveDirectory {
 public:
  explicit SaveDirectory(std::string path, const FileSystem& files = system_files())
      : path_(std::move(path)), files_(&files) {}

  const std::string& path() const { return path_; }
  bool exists() const;      // whether it is a directory
  bool is_foreign() const;  // whether it has files, but none that a run with --save writes
  std::string iteration_path(int64_t iteration) const;  // DIR/iter_0000100
  std::string tracker_path() const;                     // DIR/latest_checkpointed_iteration.txt
  std::string gemm_choices_path() const;                // DIR/gemm_choices.json
  // Steps that have a directory, ascending, without checking that it is complete. Throws Error for
  // a folder that exists and cannot be listed.
  std::vector<int64_t> iterations() const;
  // Step named by the tracker file; none if there is no such file. Throws Error if it holds
  // something else.
  std::optional<int64_t> tracked() const;
  // The same, but returns none for a file that holds something else, and sets *why (unless null) to
  // the error.
  std::optional<int64_t> tracked_if_valid(std::string* why) const;

  // The calls below are for the run that writes. create() makes the directory; throws Error if it
  // cannot be written.
  void create() const;
  // Throws Error if another process of this machine writes here. The lock ends with the process, or
  // when the returned object is destroyed.
  class Lock;
  Lock lock() const;
  void track(int64_t iteration) const;  // atomic
  // Renames it first, so that a partly removed directory is not taken for a checkpoint.
  void remove(int64_t iteration) const;
  // Repairs what terminated runs left half written, half replaced or half removed.
  void recover() const;

 private:
  std::string path_;
  const FileSystem* files_;
};

class SaveDirectory::Lock {
 public:
  explicit Lock(int file) : file_(file) {}
  ~Lock();
  Lock(Lock&& other) noexcept;
  Lock& operator=(Lock&&) = delete;

 private:
  int file_;
};

// True for a directory of a whole model or of an adapter.
bool is_model(const std::string& path);

// Returns a model directory unchanged, or the checkpoint that the tracker of a --save directory
// names. Throws Error naming `flag`, which gave the path ("--model"; "": none), and what is
// missing.
std::string resolve_model_directory(const std::string& path, std::string_view flag = {});

}  // namespace megatron::resume
