// Directory that a save is written to before it gets its final name.
#pragma once

#include <string>

#include "base/file_system.h"

namespace megatron::checkpoint {

// Used by one rank. Named `<path>.tmp` until publish(); removed if it is not published.
class Staging {
 public:
  // replace: true if an existing directory `path` may be replaced. The constructor does not touch
  // the disk.
  Staging(std::string path, bool replace, const FileSystem& files);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  const std::string& path() const { return path_; }      // without trailing slashes
  const std::string& folder() const { return staged_; }  // folder that receives the files

  // Removes what a terminated run left and makes the parent directory of `path`. Throws Error if
  // `path` exists and may not be replaced.
  void clear();
  void make();
  // Flushes the directory, renames it to `path` and flushes the parent; an older directory is then
  // removed. If it throws Error, the older directory, or none, is at `path`, unless the rename
  // cannot be undone.
  void publish();
  void remove();  // best effort

 private:
  bool check_target() const;  // returns whether there is a directory to replace
  void swap_in();
  void undo(bool replaced) noexcept;

  const FileSystem& files_;
  std::string path_, staged_, replaced_;
  bool replace_ = false, made_ = false;
  bool exchanged_ = false;  // whether the older directory was moved away by an exchange
};

}  // namespace megatron::checkpoint
