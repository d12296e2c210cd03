// Files: reads of whole files, read-only maps, and atomic writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/file_system.h"

namespace megatron {

// Directory of a path; "." if it names none.
std::string folder_of(const std::string& path);

// Reads the whole file, up to `limit` bytes (4 GiB). Throws Error naming the path and the reason;
// reads at most 4 KB more of a larger file.
std::string read_file(const std::string& path);
std::string read_file(const std::string& path, size_t limit);

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

// A file open for writing. Interrupted and short writes are continued; failures throw Error naming
// `called`, the reason and what to change. The destructor always closes it.
class OutputFile {
 public:
  // flags: those of open. `called`: the file's name in errors; "" for `path`.
  OutputFile(const std::string& path, int flags, const FileSystem& files, std::string called = "");
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // The same, but returns null, with errno set, if the file cannot be opened.
  static std::unique_ptr<OutputFile> try_open(const std::string& path, int flags,
                                              const FileSystem& files, std::string called);

  void write(std::span<const std::byte> bytes);
  void write_at(std::span<const std::byte> bytes, int64_t offset);
  void resize(int64_t bytes);
  void sync();   // forces all bytes so far to disk
  void close();  // at most once
  int number() const { return file_; }

 private:
  OutputFile(int file, const FileSystem& files, std::string called);
  [[noreturn]] void failed(int error) const;

  const FileSystem& files_;
  std::string called_;
  int file_ = -1;
};

// Makes the directory and its missing parents. Throws Error naming it and the reason.
void make_directories(const std::string& path, const FileSystem& files = system_files());

// Flushes the names in a directory to the disk. Does nothing if a directory cannot be flushed (it
// may be writable but not readable; some file systems do not support it). Throws Error on a
// failure.
void sync_directory(const std::string& path, const FileSystem& files = system_files());

// Throws Error naming both paths.
void rename_path(const std::string& from, const std::string& to,
                 const FileSystem& files = system_files());

// Removes a file, a link (not its target) or a directory with everything below it; does nothing if
// the path does not exist. Throws Error naming what cannot be removed.
void remove_tree(const std::string& path, const FileSystem& files = system_files());

// A file that appears under its name only when it is complete: bytes are written under a temporary
// name in the same directory; commit() flushes them to the disk, renames the file, and flushes the
// directory. Without commit() the temporary file is removed.
class AtomicFile {
 public:
  // Makes missing parent directories. `files` must outlive this.
  explicit AtomicFile(std::string path, const FileSystem& files = system_files());
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);  // throws Error (no space left, ...); buffered
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }
  int64_t size() const { return size_; }  // bytes written so far
  void sync();  // forces all bytes so far to disk, so that commit() only renames
  void commit();
  // Like commit(), but without flushing: after a crash of the machine the file may be truncated.
  // For small files that can be regenerated and are checked when they are read.
  void publish();

 private:
  void flush();
  void rename();
  void put(std::span<const std::byte> bytes);

  const FileSystem& files_;
  std::string path_, temporary_;
  std::string buffer_;
  std::unique_ptr<OutputFile> file_;
  int64_t size_ = 0, written_ = 0, started_ = 0;  // started_: bytes whose write to disk was started
};

// Error text of the system for a write that failed with `error` (errno), and what to change if that
// is known: no space, a file size limit, a location that may not be written.
std::string write_failure(int error);

// Writes through AtomicFile.
void write_file(const std::string& path, std::string_view text,
                const FileSystem& files = system_files());

}  // namespace megatron
