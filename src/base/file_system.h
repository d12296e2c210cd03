// The file operations of everything that must not be lost, as a value: tests make each of them
// fail, be slow, or be the last one before the process ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace megatron {

// Each does what the system call of that name does, and is retried by its callers when it is
// interrupted (EINTR), but for close. 0 or more: done; -1: errno says why not. Stateless and safe
// from several threads.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  virtual int open(const std::string& path,
                   int flags) const;  // new files get mode 0666; O_CLOEXEC is added
  // May write less than asked for.
  virtual int64_t write(int file, std::span<const std::byte> bytes) const;
  virtual int64_t write_at(int file, std::span<const std::byte> bytes, int64_t offset) const;
  virtual int resize(int file, int64_t bytes) const;
  virtual int sync(int file) const;
  virtual int close(int file) const;
  virtual int rename(const std::string& from, const std::string& to) const;
  // The two names change places, in one operation. Not on every file system (EINVAL).
  virtual int exchange(const std::string& a, const std::string& b) const;
  virtual int make_directory(const std::string& path) const;
  virtual int remove(const std::string& path) const;  // a file or an empty directory
  // Bytes that this user may still write to the file system of an existing path.
  virtual int64_t free_bytes(const std::string& path) const;
};

// Linux moves at most 2^31 - 4096 bytes a call.
inline constexpr size_t kLargestTransfer = size_t{1} << 30;

// That of the system.
const FileSystem& system_files();

}  // namespace megatron
