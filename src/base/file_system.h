// File operations for everything that must not be lost, as an object: tests make each of them fail,
// be slow, or be the last one before the process ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace megatron {

// Each member makes the system call of that name; callers retry it if it is interrupted (EINTR),
// except close. 0 or more: success; -1: errno has the reason. Stateless and thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  virtual int open(const std::string& path,
                   int flags) const;  // new files get mode 0666; O_CLOEXEC is added
  // May write fewer bytes than requested.
  virtual int64_t write(int file, std::span<const std::byte> bytes) const;
  virtual int64_t write_at(int file, std::span<const std::byte> bytes, int64_t offset) const;
  virtual int resize(int file, int64_t bytes) const;
  virtual int sync(int file) const;
  virtual int close(int file) const;
  virtual int rename(const std::string& from, const std::string& to) const;
  // Exchanges two names in one operation. Not supported by every file system (EINVAL).
  virtual int exchange(const std::string& a, const std::string& b) const;
  virtual int make_directory(const std::string& path) const;
  virtual int remove(const std::string& path) const;  // a file or an empty directory
  // Bytes that this user can still write to the file system of an existing path.
  virtual int64_t free_bytes(const std::string& path) const;
};

// Linux transfers at most 2^31 - 4096 bytes per call.
inline constexpr size_t kLargestTransfer = size_t{1} << 30;

// The operating system's file system.
const FileSystem& system_files();

}  // namespace megatron
