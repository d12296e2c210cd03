// The bytes of a file as they are meant: plain, or unpacked from gzip or zstd, which are known by
// the file's first bytes. Several gzip members or zstd frames one behind the other are one text;
// zstd's skippable frames hold none of it.
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
  //   memory: bytes that this process may use, of which a zstd window may take half (128 MiB where
  //   that is more, 2 GiB at most); default available_memory()
  static std::unique_ptr<ByteSource> open(const std::string& path,
                                          std::optional<int64_t> memory = {});
  virtual ~ByteSource() = default;

  // Fills the front of `out`; the number of bytes, 0 at the end. Throws Error naming the path when
  // the file cannot be read, when compressed data are damaged or cut short, and when the file's
  // size or time of change differs at the end from what it was at the beginning.
  virtual size_t read(std::span<char> out) = 0;
  virtual int64_t consumed() const = 0;  // bytes of the file as it lies on the disk
  virtual int64_t size() const = 0;      // the same, in all
};

}  // namespace megatron::data
