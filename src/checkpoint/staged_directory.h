// A directory that appears under its name only when it is whole.
#pragma once

#include <string>

namespace megatron::checkpoint {

// Files go to `<path>.tmp-<process id>`, made by the constructor (what a dead process left there is
// removed first); commit() flushes that directory, renames it to `path` and flushes the parent.
// Without commit() it is removed with its contents.
class StagedDirectory {
 public:
  explicit StagedDirectory(std::string path);  // throws Error when `path` exists or cannot be made
  ~StagedDirectory();
  StagedDirectory(const StagedDirectory&) = delete;
  StagedDirectory& operator=(const StagedDirectory&) = delete;

  std::string operator/(const std::string& file) const { return temporary_ + "/" + file; }
  void commit();

 private:
  std::string path_, temporary_;
};

}  // namespace megatron::checkpoint
