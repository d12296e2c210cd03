// Fast division by a number that is the same for all threads.
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cstdint>

namespace megatron::kernels::cuda {

// Divides numbers below 2^31 by multiplication (Granlund & Montgomery 1994): with s = ceil(log2 d)
// and m = ceil(2^(31+s) / d), n m / 2^(31+s) exceeds n / d by less than 1 / d.
class Divisor {
 public:
  explicit Divisor(uint32_t value)  // 1 to 2^31
      : value_(value),
        shift_(static_cast<uint32_t>(std::bit_width(value - 1))),
        factor_(static_cast<uint32_t>(((uint64_t{1} << (31 + shift_)) + value - 1) / value)) {}

  __device__ uint32_t value() const { return value_; }
  __device__ uint32_t quotient(uint32_t n) const { return __umulhi(2 * n, factor_) >> shift_; }

 private:
  uint32_t value_, shift_, factor_;
};

}  // namespace megatron::kernels::cuda
