#include "report/log/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/files.h"

namespace megatron::report {

AppendFile::AppendFile(std::string path, Open open) : path_(std::move(path)) {
  const std::string folder = folder_of(path_);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  MG_CHECK(!error, "cannot make the directory '{}': {}", folder, write_failure(error.value()));
  const int flags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | (open == Open::create ? O_EXCL : 0);
  do file_ = ::open(path_.c_str(), flags, 0666);
  while (file_ < 0 && errno == EINTR);
  MG_CHECK(file_ >= 0, "cannot write '{}': {}", path_, write_failure(errno));
}

AppendFile::~AppendFile() {
  if (file_ >= 0) ::close(file_);
}

void AppendFile::write(std::string_view record) {
  struct stat status;
  MG_CHECK(::fstat(file_, &status) != 0 || status.st_nlink > 0, "cannot write '{}': it was removed",
           path_);
  while (!record.empty()) {
    const ssize_t n = ::write(file_, record.data(), record.size());
    if (n < 0 && errno == EINTR) continue;
    MG_CHECK(n >= 0, "cannot write '{}': {}", path_, write_failure(errno));
    record.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace megatron::report
