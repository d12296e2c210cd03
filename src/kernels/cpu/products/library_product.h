// Whole products as an application would compute them with oneDNN, as the baseline that
// kernels/cpu/products/problem.cpp is measured against.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "base/dtype.h"
#include "device/arena.h"

namespace megatron::kernels::cpu {

// `batch` products c [m,n] = (accumulate ? c : 0) + a [m,k] b [k,n] of contiguous matrices, on
// `threads` OpenMP threads.
struct LibraryProduct {
  enum class Order {
    rows,     // row-major
    columns,  // column-major
    packed,   // in the library's preferred layout, reordered beforehand
  };
  int64_t batch = 1, m = 0, n = 0, k = 0;
  Order a = Order::rows, b = Order::rows;
  bool accumulate = false;
  DType in = DType::f32, out = DType::f32;
};

// Calls `measure` with a function that computes the product once, on its own operands in `scratch`.
// Runs on a new thread, so that its OpenMP settings affect nobody else. Returns false if the
// library does not support this product, or this build has no library. bf16 requires
// bf16_products() other than widened.
bool with_library_product(const LibraryProduct& product, int threads, Arena& scratch,
                          const std::function<void(const std::function<void()>& run)>& measure);

}  // namespace megatron::kernels::cpu
