// The uncompressed bytes of a file: plain, or unpacked from gzip or zstd, which are recognised by
// the file's first bytes. Several consecutive gzip members or zstd frames are one text; zstd's
// skippable frames are ignored.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace megatron::data {

class ByteSource {
 public:
  // Throws Error naming the path and the reason.
  // memory: bytes that this process may use; a zstd window may take half of them (at least 128 MiB,
  // at most 2 GiB). Default: available_memory()
  static std::unique_ptr<ByteSource> open(const std::string& path,
                                          std::optional<int64_t> memory = {});
  virtual ~ByteSource() = default;

  // Fills the front of `out`; returns the number of bytes, 0 at the end. Throws Error naming the
  // path if the file cannot be read, if compressed data are damaged or truncated, and if the file's
  // size or time of change differs at the end from that at the beginning.
  virtual size_t read(std::span<char> out) = 0;
  virtual int64_t consumed() const = 0;  // bytes consumed of the file on disk
  virtual int64_t size() const = 0;      // total size of the file on disk
};

}  // namespace megatron::data
