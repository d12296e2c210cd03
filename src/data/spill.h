// A long list that is written once and read once from the front, in bounded memory: everything
// beyond one megabyte goes to an unnamed file, which no crash leaves behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"

namespace megatron::data {

class SpilledBytes {
 public:
  explicit SpilledBytes(std::string folder);  // folder with enough space for the file
  ~SpilledBytes();
  SpilledBytes(SpilledBytes&& other) noexcept;
  SpilledBytes& operator=(SpilledBytes&&) = delete;

  void append(std::span<const std::byte> bytes);  // throws Error (no space left, ...)
  // Passes all bytes in order, in parts of at most one megabyte; each but the last is a multiple of
  // 64 bytes long.
  void for_each(FunctionRef<void(std::span<const std::byte>)> use) const;
  int64_t size() const { return spilled_ + static_cast<int64_t>(buffer_.size()); }

 private:
  void flush();

  std::string folder_;
  int file_ = -1;
  int64_t spilled_ = 0;
  std::vector<std::byte> buffer_;
};

// The same for numbers.
template <class T>
class SpilledList {
 public:
  explicit SpilledList(std::string folder) : bytes_(std::move(folder)) {}
  void append(std::span<const T> values) { bytes_.append(std::as_bytes(values)); }
  void push_back(T value) { append(std::span<const T>(&value, 1)); }
  void for_each(FunctionRef<void(std::span<const T>)> use) const {
    bytes_.for_each([&](std::span<const std::byte> part) {
      use({reinterpret_cast<const T*>(part.data()), part.size() / sizeof(T)});
    });
  }
  int64_t size() const { return bytes_.size() / static_cast<int64_t>(sizeof(T)); }

 private:
  SpilledBytes bytes_;
};

}  // namespace megatron::data
