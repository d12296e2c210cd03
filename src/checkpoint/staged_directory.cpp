#include "checkpoint/staged_directory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/error.h"

namespace megatron::checkpoint {
namespace {

namespace fs = std::filesystem;

std::string without_end_slashes(std::string path) {
  MG_CHECK(!path.empty(), "the name of the directory to write is empty");
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

void check_absent(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  MG_CHECK(status.type() == fs::file_type::not_found,
           "'{}' exists already; remove it or choose another name", path);
}

void flush_directory(const std::string& path) {
  const int number = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (number < 0) return;  // may be written but not read
  int result;
  do result = ::fsync(number);
  while (result != 0 && errno == EINTR);
  const int error = result == 0 ? 0 : errno;
  ::close(number);
  // Some file systems cannot flush a directory.
  MG_CHECK(error == 0 || error == EINVAL || error == EROFS,
           "cannot write the directory '{}' to the disk: {}", path,
           std::generic_category().message(error));
}

}  // namespace

StagedDirectory::StagedDirectory(std::string path) : path_(without_end_slashes(std::move(path))) {
  check_absent(path_);
  const std::string temporary = fmt::format("{}.tmp-{}", path_, ::getpid());
  std::error_code error;
  fs::remove_all(temporary, error);
  if (!error) fs::create_directories(temporary, error);
  MG_CHECK(!error, "cannot make the directory '{}': {}", temporary, error.message());
  temporary_ = temporary;
}

StagedDirectory::~StagedDirectory() {
  std::error_code error;
  if (!temporary_.empty()) fs::remove_all(temporary_, error);
}

void StagedDirectory::commit() {
  MG_ASSERT(!temporary_.empty());
  flush_directory(temporary_);
  check_absent(path_);
  std::error_code error;
  fs::rename(temporary_, path_, error);
  MG_CHECK(!error, "cannot rename '{}' to '{}': {}", temporary_, path_, error.message());
  temporary_.clear();
  const std::string parent = fs::path(path_).parent_path().string();
  flush_directory(parent.empty() ? "." : parent);
}

}  // namespace megatron::checkpoint
