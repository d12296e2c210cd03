// Files: whole reads, read-only maps, and writes that appear whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace megatron {

// The directory that a path lies in; "." where it names none.
std::string folder_of(const std::string& path);

// The whole file, up to 4 GiB. Throws Error naming the path and the reason.
std::string read_file(const std::string& path);

// A file mapped read-only. An empty file is an empty span. Throws Error naming the path and the
// reason.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// A file that appears under its name only when it is whole: bytes go to a temporary name in the
// same directory; commit() flushes them to the disk, renames, and flushes the directory. Without
// commit() the temporary file is removed.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);  // makes missing parent directories
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);  // throws Error (no space left, ...); buffered
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }
  int64_t size() const { return size_; }  // bytes written so far
  void sync();  // all bytes so far are on the disk; commit() then only changes names
  void commit();
  // As commit(), but not flushed: when the machine crashes, the file may come out cut short. For
  // small things that can be made again, and are checked when they are read.
  void publish();

 private:
  void flush();
  void rename();
  void put(std::span<const std::byte> bytes);

  std::string path_, temporary_;
  std::string buffer_;
  int file_ = -1;
  int64_t size_ = 0, written_ = 0, started_ = 0;  // started_: bytes that are told to go to the disk
};

// What the system says of a write that failed with `error` (errno), and what to change where that is
// known: no room, a limit of file sizes, a place that may not be written.
std::string write_failure(int error);

void write_file(const std::string& path, std::string_view text);  // through AtomicFile

}  // namespace megatron
