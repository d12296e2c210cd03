// Products with f64 sums.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace megatron::kernels::cpu {

// c [m,n] = a b, with row stride double_stride(n) in c. Each element is one chain of fused
// multiply-adds in ascending k, starting from 0, so its bits depend on no other size.
struct DoubleProduct {
  // An operand of `type` (f64, f32, bf16), with its strides along m (or n) and along k.
  struct Operand {
    const std::byte* at;
    int64_t place, step;
  };
  int64_t m, n, k;
  DType type;
  Operand a, b;
  double* c;
};

void double_product(const DoubleProduct& product);
int64_t double_stride(int64_t n);

}  // namespace megatron::kernels::cpu
