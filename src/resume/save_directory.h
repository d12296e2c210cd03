// A folder of checkpoints: DIR/iter_0000100/ and DIR/latest_checkpointed_iteration.txt; of a run with
// --gemm-tuning on also DIR/gemm_choices.json.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/file_system.h"

namespace megatron::resume {

class SaveDirectory {
 public:
  explicit SaveDirectory(std::string path, const FileSystem& files = system_files())
      : path_(std::move(path)), files_(&files) {}

  const std::string& path() const { return path_; }
  bool exists() const;      // is a directory
  bool is_foreign() const;  // holds files, and none that a run with --save makes
  std::string iteration_path(int64_t iteration) const;  // DIR/iter_0000100
  std::string tracker_path() const;                     // DIR/latest_checkpointed_iteration.txt
  std::string gemm_choices_path() const;                // DIR/gemm_choices.json
  // Steps that have a directory, ascending; whether it is whole is not looked at. Throws Error for
  // a folder that is there and cannot be listed.
  std::vector<int64_t> iterations() const;
  // The step that the tracker file names; none where there is no such file. Throws Error for one
  // that holds something else.
  std::optional<int64_t> tracked() const;

  // Of the run that writes:
  // Makes the directory. Throws Error when it cannot be written.
  void create() const;
  // Throws Error when another process of this machine writes here; the lock ends with the process,
  // or with what is returned.
  class Lock;
  Lock lock() const;
  void track(int64_t iteration) const;  // whole or not at all
  void remove(
      int64_t iteration) const;  // under another name first: what is half removed is no checkpoint
  // What ended runs left half written, half replaced or half removed.
  void mend() const;

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

// A model directory as it is, or the checkpoint that the tracker of a --save directory names.
// Throws Error naming what is missing.
std::string resolve_model_directory(const std::string& path);

}  // namespace megatron::resume
