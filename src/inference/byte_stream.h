// Serializes values to bytes, for exchange between ranks of the same program. Writer and reader
// have the same members, so that one function template that visits a structure does both.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"

namespace megatron::inference {

class ByteWriter {
 public:
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void put(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void put(const std::vector<T>& values) {
    put(values.size());
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }
  void put(const std::string& text) {
    put(text.size());
    bytes_ += text;
  }
  template <class... T>
  void fields(const T&... values) {
    (put(values), ...);
  }
  // A list whose elements `visit` writes.
  template <class T, class F>
  void each(const std::vector<T>& values, F&& visit) {
    put(values.size());
    for (const T& value : values) visit(value);
  }
  std::string take() { return std::exchange(bytes_, {}); }

 private:
  std::string bytes_;
};

// Reads what a ByteWriter wrote, in the same order.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  bool at_end() const { return bytes_.empty(); }
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void get(T& value) {
    copy(&value, sizeof value);
  }
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void get(std::vector<T>& values) {
    values.resize(get<size_t>());
    copy(values.data(), values.size() * sizeof(T));
  }
  void get(std::string& text) {
    text.resize(get<size_t>());
    copy(text.data(), text.size());
  }
  template <class T>
  T get() {
    T value{};
    get(value);
    return value;
  }
  template <class... T>
  void fields(T&... values) {
    (get(values), ...);
  }
  template <class T, class F>
  void each(std::vector<T>& values, F&& visit) {
    values.resize(get<size_t>());
    for (T& value : values) visit(value);
  }

 private:
  void copy(void* to, size_t size) {
    MG_ASSERT(size <= bytes_.size());
    if (size > 0) std::memcpy(to, bytes_.data(), size);
    bytes_.remove_prefix(size);
  }

  std::string_view bytes_;
};

}  // namespace megatron::inference
