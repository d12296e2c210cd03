#pragma once

#include <string>

namespace megatron::bench {

// A folder for what a measurement writes. It is removed with what is in it when the object ends, and
// also when the process is killed, by SIGKILL too: a small process waits for that.
class TemporaryFolder {
 public:
  // PARENT/NAME-XXXXXX. flag: the one that names the parent, for messages. keep: it stays.
  TemporaryFolder(const std::string& parent, const std::string& name, const std::string& flag,
                  bool keep = false);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int alive_ = -1;   // a pipe's end; the other process reads its end of file when this one is gone
  int remover_ = 0;  // that process
};

}  // namespace megatron::bench
