// Whole products as a caller of oneDNN would make them: what kernels/cpu/products/problem.cpp is
// measured against.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "base/dtype.h"
#include "device/arena.h"

namespace megatron::kernels::cpu {

// `batch` products c [m,n] = (accumulate ? c : 0) + a [m,k] b [k,n], each dense; by all of
// `threads` OpenMP threads.
struct LibraryProduct {
  enum class Order {
    rows,     // row after row
    columns,  // its transpose lies in memory, row after row
    packed,   // as the library wants it: reordered beforehand
  };
  int64_t batch = 1, m = 0, n = 0, k = 0;
  Order a = Order::rows, b = Order::rows;
  bool accumulate = false;
  DType in = DType::f32, out = DType::f32;
};

// Calls `measure` with a function that makes the product once, on operands of its own in `scratch`;
// on a thread of its own, whose OpenMP settings are nobody else's. False: the library does not have
// this product, or this build has no library. bf16 needs bf16_products() other than widened.
bool with_library_product(const LibraryProduct& product, int threads, Arena& scratch,
                          const std::function<void(const std::function<void()>& run)>& measure);

}  // namespace megatron::kernels::cpu
