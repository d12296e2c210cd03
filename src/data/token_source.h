// A source of tokens: numbered sequences of token ids, each readable in part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "base/json.h"

namespace megatron {
class ThreadPool;
}

namespace megatron::data {

// Number of tokens of each sequence, in the files' format: 32-bit, little-endian, unaligned.
class Lengths {
 public:
  Lengths() = default;
  explicit Lengths(std::span<const std::byte> bytes)
      : data_(bytes.data()), size_(static_cast<int64_t>(bytes.size() / sizeof(int32_t))) {}

  int64_t size() const { return size_; }
  int64_t operator[](int64_t sequence) const {  // unchecked
    int32_t length;
    std::memcpy(&length, data_ + sizeof length * static_cast<size_t>(sequence), sizeof length);
    return length;
  }
  const std::byte* address(int64_t sequence) const { return data_ + 4 * sequence; }

 private:
  const std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

class TokenSource {
 public:
  virtual ~TokenSource() = default;

  // Prefix of the files; names the source in messages.
  virtual const std::string& path() const = 0;
  virtual int64_t sequence_count() const = 0;
  virtual int64_t length(int64_t sequence) const = 0;  // in tokens
  // Fills `out` with tokens [offset, offset + out.size()) of the sequence. Throws Error if that
  // range is not inside it.
  virtual void read(int64_t sequence, int64_t offset, std::span<int64_t> out) const = 0;

  virtual Lengths lengths() const = 0;
  // Bytes that are equal for two sources only if all their lengths are: the key for caches.
  virtual std::span<const std::byte> index_bytes() const = 0;
  // Sizes, times and inode numbers of the files: the content is unchanged as long as they are.
  // Null: there are no files.
  virtual Json identity() const { return {}; }
  // Checks every entry of the files. Throws Error naming a damaged one.
  virtual void check(ThreadPool&) const {}
};

}  // namespace megatron::data
