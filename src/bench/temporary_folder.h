#pragma once

#include <string>

namespace megatron::bench {

// A folder for a measurement's files. It is removed with its contents when the object is destroyed,
// and also when the process is killed, even by SIGKILL, by a small process that waits for that.
class TemporaryFolder {
 public:
  // Creates PARENT/NAME-XXXXXX. flag: the flag that names the parent, for messages. keep: the
  // folder is not removed.
  TemporaryFolder(const std::string& parent, const std::string& name, const std::string& flag,
                  bool keep = false);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int alive_ = -1;   // end of a pipe; the other process sees end of file when this process is gone
  int remover_ = 0;  // id of that process
};

}  // namespace megatron::bench
