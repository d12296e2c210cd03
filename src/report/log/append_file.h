// A file that grows by whole records: each is given to the system in one piece, so that a process
// that is killed leaves at most the last one cut short.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace megatron::report {

class AppendFile {
 public:
  enum class Open { append, create };  // create: the file must not exist yet

  // Makes missing parent directories. Throws Error naming the path and the reason.
  AppendFile(std::string path, Open open);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  const std::string& path() const { return path_; }
  // Throws Error naming the path and the reason; also when somebody removed the file meanwhile.
  void write(std::string_view record);

 private:
  std::string path_;
  int file_ = -1;
};

}  // namespace megatron::report
