// The directory that a save is written to before it gets its name.
#pragma once

#include <string>

#include "base/file_system.h"

namespace megatron::checkpoint {

// Used by one rank. `<path>.tmp` until publish(); what is not published is removed.
class Staging {
 public:
  // replace: whether a directory `path` may be replaced. Nothing is done yet.
  Staging(std::string path, bool replace, const FileSystem& files);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  const std::string& path() const { return path_; }      // without slashes at its end
  const std::string& folder() const { return staged_; }  // where the files go

  // Removes what an ended run left and makes the directory above `path`. Throws Error when `path`
  // exists and may not be replaced.
  void clear();
  void make();
  // Flushes the directory, gives it its name and flushes the one above; an older directory is then
  // removed. Throws Error: then the older one, or none, is at `path`, unless that cannot be undone.
  void publish();
  void remove();  // best effort

 private:
  bool check_target() const;  // returns whether there is a directory to replace
  void swap_in();
  void undo(bool replaced) noexcept;

  const FileSystem& files_;
  std::string path_, staged_, replaced_;
  bool replace_ = false, made_ = false;
  bool exchanged_ = false;  // how the older directory was moved away
};

}  // namespace megatron::checkpoint
