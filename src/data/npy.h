// Arrays of integers, in memory or mapped from NumPy's .npy files (version 1.0, little-endian, C
// order).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/files.h"

namespace megatron::data {

enum class IntegerType { i16, i32, u32, i64 };
std::string_view name(IntegerType type);  // NumPy's name: "<i4" ...

// True if a file with this beginning is a NumPy array.
inline bool is_npy(std::string_view beginning) { return beginning.starts_with("\x93NUMPY"); }

struct NpyHeader {
  std::string_view type;  // NumPy's name, within the file
  std::vector<int64_t> shape;
  size_t data = 0;  // offset of the elements
};
// Parses the beginning of a file in C order. Throws Error naming `path` if it is none.
NpyHeader read_npy_header(std::string_view file, const std::string& path);

class IntegerArray {
 public:
  IntegerArray(IntegerType type, std::vector<int64_t> shape);  // zeros, in memory
  // Maps a file. Throws Error naming the file if it is not a complete .npy file of integers.
  static IntegerArray map(const std::string& path);

  IntegerType type() const { return type_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t size() const { return size_; }  // elements
  std::span<const std::byte> bytes() const { return {data_, static_cast<size_t>(size_ * item_)}; }
  int64_t operator[](int64_t i) const;  // element i in C order; unchecked
  // Elements of an array in memory. T: the C++ type of the same width and signedness.
  template <class T>
  std::span<T> values() {
    MG_ASSERT(!file_ && sizeof(T) == static_cast<size_t>(item_));
    return {reinterpret_cast<T*>(memory_.get()), static_cast<size_t>(size_)};
  }
  template <class T>
  std::span<const T> values() const {
    MG_ASSERT(!file_ && sizeof(T) == static_cast<size_t>(item_));
    return {reinterpret_cast<const T*>(data_), static_cast<size_t>(size_)};
  }
  void write(AtomicFile& file) const;  // as .npy

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };

  IntegerType type_;
  std::vector<int64_t> shape_;
  int64_t size_ = 1, item_ = 0;
  std::unique_ptr<std::byte, Free> memory_;
  std::optional<MappedFile> file_;
  const std::byte* data_ = nullptr;
};

}  // namespace megatron::data
