// Files: whole reads, read-only maps, and writes that appear whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/file_system.h"

namespace megatron {

// The directory that a path lies in; "." where it names none.
std::string folder_of(const std::string& path);

// The whole file, up to `limit` bytes (4 GiB). Throws Error naming the path and the reason; of a
// larger file no more than 4 KB beyond that are read.
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

// A file open for writing. What is interrupted or comes out short goes on; what fails throws Error
// naming `called`, the reason and what to change. Closed at the end, whatever happens.
class OutputFile {
 public:
  // flags: those of open. `called`: the file's name in errors; "" for `path`.
  OutputFile(const std::string& path, int flags, const FileSystem& files, std::string called = "");
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // The same, but none, with errno, when the file cannot be opened.
  static std::unique_ptr<OutputFile> try_open(const std::string& path, int flags,
                                              const FileSystem& files, std::string called);

  void write(std::span<const std::byte> bytes);
  void write_at(std::span<const std::byte> bytes, int64_t offset);
  void resize(int64_t bytes);
  void sync();   // all bytes so far are on the disk
  void close();  // at most once
  int number() const { return file_; }

 private:
  OutputFile(int file, const FileSystem& files, std::string called);
  [[noreturn]] void failed(int error) const;

  const FileSystem& files_;
  std::string called_;
  int file_ = -1;
};

// The directory and those above it that are missing. Throws Error naming it and the reason.
void make_directories(const std::string& path, const FileSystem& files = system_files());

// The names in a directory are on the disk. Where a directory cannot be flushed (it may be written
// but not read; some file systems have no such thing) nothing is done. Throws Error on a failure.
void sync_directory(const std::string& path, const FileSystem& files = system_files());

// Throws Error naming both.
void rename_path(const std::string& from, const std::string& to,
                 const FileSystem& files = system_files());

// A file, a link (not what it leads to) or a directory with all below it; nothing where there is
// none. Throws Error naming what cannot be removed.
void remove_tree(const std::string& path, const FileSystem& files = system_files());

// A file that appears under its name only when it is whole: bytes go to a temporary name in the
// same directory; commit() flushes them to the disk, renames, and flushes the directory. Without
// commit() the temporary file is removed.
class AtomicFile {
 public:
  // Makes missing parent directories. `files` outlives this.
  explicit AtomicFile(std::string path, const FileSystem& files = system_files());
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

  const FileSystem& files_;
  std::string path_, temporary_;
  std::string buffer_;
  std::unique_ptr<OutputFile> file_;
  int64_t size_ = 0, written_ = 0, started_ = 0;  // started_: bytes whose way to the disk was begun
};

// What the system says of a write that failed with `error` (errno), and what to change where that
// is known: no room, a limit of file sizes, a place that may not be written.
std::string write_failure(int error);

// Through AtomicFile.
void write_file(const std::string& path, std::string_view text,
                const FileSystem& files = system_files());

}  // namespace megatron
