// The bytes of a .bin file, either mapped or read on request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/files.h"

namespace megatron::data {

// Thread-safe.
class BinFile {
 public:
  // Throws Error naming the path and the reason. An empty file is valid in both modes.
  BinFile(std::string path, bool map);
  ~BinFile();
  BinFile(const BinFile&) = delete;
  BinFile& operator=(const BinFile&) = delete;

  int64_t size() const { return size_; }
  bool mapped() const { return map_.has_value(); }
  std::span<const std::byte> bytes() const;  // of a mapped file
  // Copies the bytes from `offset` on, which must be inside the file. Throws Error if the file
  // cannot be read, or has become shorter.
  void read(int64_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  std::optional<MappedFile> map_;
  int file_ = -1;
  int64_t size_ = 0;
};

}  // namespace megatron::data
