// File systems for tests that fail, end the process, or are slow.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/file_system.h"

namespace megatron::testing {

// cut_short writes half of the bytes. `end` ends the process before the operation, and end_within
// after half of a write, both with the code kEnded.
enum class Fault { none, io_error, no_space, interrupted, cut_short, end, end_within };
inline constexpr Fault kFaults[] = {Fault::io_error,  Fault::no_space, Fault::interrupted,
                                    Fault::cut_short, Fault::end,      Fault::end_within};
inline constexpr int kEnded = 77;

inline std::string_view name(Fault fault) {
  constexpr std::string_view kNames[] = {
      "none", "EIO", "ENOSPC", "EINTR", "short write", "end", "end within a write"};
  return kNames[static_cast<int>(fault)];
}

inline bool ends(Fault fault) { return fault == Fault::end || fault == Fault::end_within; }

// Forwards to the system's files, except that operation number `at` (0, 1, ... over all threads)
// has the fault. Nothing is flushed to disk: a process that ends keeps all that it has written.
class FaultyFiles final : public FileSystem {
 public:
  explicit FaultyFiles(Fault fault = Fault::none, int64_t at = -1) : fault_(fault), at_(at) {}

  void forbid_exchange() { can_exchange_ = false; }  // EINVAL, as on some file systems
  void set_free_bytes(int64_t bytes) { free_bytes_ = bytes; }

  int open_files() const { return open_; }
  std::vector<std::string> operations() const {  // so far, by name
    const std::lock_guard lock(mutex_);
    return operations_;
  }

  int open(const std::string& path, int flags) const override {
    if (fails("open")) return -1;
    const int file = FileSystem::open(path, flags);
    if (file >= 0) ++open_;
    return file;
  }
  int64_t write(int file, std::span<const std::byte> bytes) const override {
    bool half = false;
    if (fails("write", &half)) return -1;
    const int64_t n = FileSystem::write(file, half ? first_half(bytes) : bytes);
    return end_within(half), n;
  }
  int64_t write_at(int file, std::span<const std::byte> bytes, int64_t offset) const override {
    bool half = false;
    if (fails("write_at", &half)) return -1;
    const int64_t n = FileSystem::write_at(file, half ? first_half(bytes) : bytes, offset);
    return end_within(half), n;
  }
  int resize(int file, int64_t bytes) const override {
    return fails("resize") ? -1 : FileSystem::resize(file, bytes);
  }
  int sync(int) const override { return fails("sync") ? -1 : 0; }
  int close(int file) const override {  // a failing close closes
    const bool failed = fails("close");
    const int error = errno;
    FileSystem::close(file);
    --open_;
    errno = error;
    return failed ? -1 : 0;
  }
  int rename(const std::string& from, const std::string& to) const override {
    return fails("rename") ? -1 : FileSystem::rename(from, to);
  }
  int exchange(const std::string& a, const std::string& b) const override {
    if (fails("exchange")) return -1;
    if (can_exchange_) return FileSystem::exchange(a, b);
    errno = EINVAL;
    return -1;
  }
  int make_directory(const std::string& path) const override {
    return fails("make_directory") ? -1 : FileSystem::make_directory(path);
  }
  int remove(const std::string& path) const override {
    return fails("remove") ? -1 : FileSystem::remove(path);
  }
  int64_t free_bytes(const std::string& path) const override {
    if (fails("free_bytes")) return -1;
    return free_bytes_ >= 0 ? free_bytes_ : FileSystem::free_bytes(path);
  }

 private:
  static std::span<const std::byte> first_half(std::span<const std::byte> bytes) {
    return bytes.first(std::max(bytes.size() / 2, std::min(bytes.size(), size_t{1})));
  }

  void end_within(bool half) const {
    if (half && fault_ == Fault::end_within) ::_exit(kEnded);
  }

  bool fails(std::string_view operation, bool* half = nullptr) const {
    int64_t number = 0;
    {
      const std::lock_guard lock(mutex_);
      number = static_cast<int64_t>(operations_.size());
      operations_.emplace_back(operation);
    }
    if (number != at_) return false;
    switch (fault_) {
      case Fault::none: return false;
      case Fault::io_error: errno = EIO; return true;
      case Fault::no_space: errno = ENOSPC; return true;
      case Fault::interrupted: errno = EINTR; return true;
      case Fault::end: ::_exit(kEnded);
      default:
        if (half != nullptr) *half = true;
        return false;
    }
  }

  Fault fault_;
  int64_t at_;
  bool can_exchange_ = true;
  int64_t free_bytes_ = -1;
  mutable std::mutex mutex_;
  mutable std::vector<std::string> operations_;
  mutable std::atomic<int> open_{0};
};

// The system's files, except that each flush takes a fixed time and does not reach the disk.
class SlowFiles final : public FileSystem {
 public:
  explicit SlowFiles(std::chrono::duration<double> sync) : sync_(sync) {}
  int sync(int) const override {
    std::this_thread::sleep_for(sync_);
    return 0;
  }

 private:
  std::chrono::duration<double> sync_;
};

}  // namespace megatron::testing
