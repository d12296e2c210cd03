// A file that grows by whole records: each is written with one system call, so that a killed
// process leaves at most the last record truncated.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace megatron::report {

class AppendFile {
 public:
  enum class Open { append, create };  // create: fails if the file exists

  // Makes missing parent directories. Throws Error naming the path and the reason.
  AppendFile(std::string path, Open open);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  const std::string& path() const { return path_; }
  // Throws Error naming the path and the reason, also if the file was removed meanwhile.
  void write(std::string_view record);

 private:
  std::string path_;
  int file_ = -1;
};

}  // namespace megatron::report
