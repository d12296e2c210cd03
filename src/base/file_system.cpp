#include "base/file_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace megatron {
namespace {}  // namespace

int FileSystem::open(const std::string& path, int flags) const {
  return ::open(path.c_str(), flags | O_CLOEXEC, 0666);
}

int64_t FileSystem::write(int file, std::span<const std::byte> bytes) const {
  return ::write(file, bytes.data(), std::min(bytes.size(), kLargestTransfer));
}

int64_t FileSystem::write_at(int file, std::span<const std::byte> bytes, int64_t offset) const {
  return ::pwrite(file, bytes.data(), std::min(bytes.size(), kLargestTransfer), offset);
}

int FileSystem::resize(int file, int64_t bytes) const { return ::ftruncate(file, bytes); }

int FileSystem::sync(int file) const { return ::fsync(file); }

int FileSystem::close(int file) const { return ::close(file); }

int FileSystem::rename(const std::string& from, const std::string& to) const {
  return ::rename(from.c_str(), to.c_str());
}

int FileSystem::exchange(const std::string& a, const std::string& b) const {
  return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE);
}

int FileSystem::make_directory(const std::string& path) const {
  return ::mkdir(path.c_str(), 0777);
}

int FileSystem::remove(const std::string& path) const { return ::remove(path.c_str()); }

int64_t FileSystem::free_bytes(const std::string& path) const {
  struct statvfs status;
  if (::statvfs(path.c_str(), &status) != 0) return -1;
  return static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize);
}

const FileSystem& system_files() {
  static const FileSystem files;
  return files;
}

}  // namespace megatron
