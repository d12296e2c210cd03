// NaN and infinity in tensors on the host.
#pragma once

#include "base/thread_pool.h"
#include "tensor/tensor.h"

namespace megatron {

// Elements that are not finite. Of a tensor of integers, none.
struct NonFinite {
  int64_t count = 0;
  int64_t first = -1;  // index in row-major order; -1: none

  explicit operator bool() const { return count > 0; }
};
// Any strides. minus_infinity_is_right: only NaN and +infinity count.
NonFinite find_non_finite(const Tensor& tensor, bool minus_infinity_is_right, ThreadPool& pool);

// Largest size of the finite elements of a floating tensor; 0 where there are none.
double largest_finite(const Tensor& tensor);

// The value, where it is NaN without its sign: that says nothing, and would be printed.
double unsigned_nan(double value);

// The element at a row-major index, and that index as a place: "[3, 7]".
double element_at(const Tensor& tensor, int64_t index);
std::string place_of(const Shape& shape, int64_t index);

}  // namespace megatron
