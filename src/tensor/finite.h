// NaN and infinity in tensors on the host.
#pragma once

#include "base/thread_pool.h"
#include "tensor/tensor.h"

namespace megatron {

// Number of elements that are not finite; 0 for a tensor of integers.
struct NonFinite {
  int64_t count = 0;
  int64_t first = -1;  // index in row-major order; -1: none

  explicit operator bool() const { return count > 0; }
};
// Any strides. minus_infinity_is_right: only NaN and +infinity count.
NonFinite find_non_finite(const Tensor& tensor, bool minus_infinity_is_right, ThreadPool& pool);

// Largest magnitude of the finite elements of a floating-point tensor; 0 if there are none.
double largest_finite(const Tensor& tensor);

// Returns the value, with the sign of a NaN removed, which is meaningless and would be printed.
double unsigned_nan(double value);

// The element at a row-major index, and that index as a position: "[3, 7]".
double element_at(const Tensor& tensor, int64_t index);
std::string place_of(const Shape& shape, int64_t index);

}  // namespace megatron
