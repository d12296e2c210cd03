// Sizes of a tensor's dimensions.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace megatron {

inline constexpr int kMaxRank = 6;

class Shape {
 public:
  Shape() = default;  // 0-d: one element
  Shape(std::initializer_list<int64_t> sizes) : Shape(std::span(sizes.begin(), sizes.size())) {}
  explicit Shape(
      std::span<const int64_t> sizes);  // throws Error above kMaxRank or on a negative size

  int rank() const { return rank_; }
  int64_t operator[](int dim) const {
    return sizes_[static_cast<size_t>(dim < 0 ? dim + rank_ : dim)];
  }
  void set(int dim, int64_t size) {
    sizes_[static_cast<size_t>(dim < 0 ? dim + rank_ : dim)] = size;
  }
  int64_t elements() const;  // product; 1 for 0-d
  bool operator==(const Shape& other) const;
  std::string str() const;  // "[2, 3]"

 private:
  std::array<int64_t, kMaxRank> sizes_{};
  int rank_ = 0;
};

}  // namespace megatron
