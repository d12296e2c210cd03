// Tensor cores and asynchronous copies on the CPU. Operands are exchanged among the fibers of a
// warp, and a copy's target is NaN until its thread has waited.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/numbers.h"

namespace megatron::kernels::cuda {

struct Matrices {
  uint32_t at[4];
};

inline Matrices matrices_of(const void* row, bool transposed) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0)
    ::cuda_shim::stop_kernel("a row of a matrix that is no multiple of 16 bytes");
  const uint64_t* rows =
      ::cuda_shim::exchange(::cuda_shim::WarpCall::matrices, ~0u, reinterpret_cast<uintptr_t>(row));
  const int lane = ::cuda_shim::here.lane, g = lane / 4, t = lane % 4;
  Matrices m;
  for (int i = 0; i < 4; ++i) {
    const auto value = [&](int r, int column) -> uint32_t {
      return reinterpret_cast<const uint16_t*>(rows[8 * i + r])[column];
    };
    m.at[i] = transposed ? value(2 * t, g) | value(2 * t + 1, g) << 16
                         : value(g, 2 * t) | value(g, 2 * t + 1) << 16;
  }
  return m;
}
inline Matrices load_matrices(const void* row) { return matrices_of(row, false); }
inline Matrices load_transposed(const void* row) { return matrices_of(row, true); }

template <class T>
void multiply_add(const Matrices& a, uint32_t b0, uint32_t b1, float (&c)[4]) {
  const uint32_t words[] = {a.at[0], a.at[1], a.at[2], a.at[3], b0, b1};
  ::cuda_shim::Operands own;
  for (int i = 0; i < 12; ++i) {
    T value;
    value.bits = static_cast<unsigned short>(words[i / 2] >> 16 * (i % 2));
    own.value[i] = value;
  }
  const ::cuda_shim::Operands* all = ::cuda_shim::exchange_operands(own);
  const int g = ::cuda_shim::here.lane / 4, t = ::cuda_shim::here.lane % 4;
  for (int n = 0; n < 4; ++n) {
    float sum = 0;
    for (int i = 0; i < 4; ++i) {
      const float* x = all[4 * g + i].value + 2 * (n / 2);
      const float* y = all[4 * (2 * t + n % 2) + i].value + 8;
      sum += x[0] * y[0] + x[1] * y[1] + x[4] * y[2] + x[5] * y[3];
    }
    c[n] += sum;
  }
}

template <int kBytes>
void copy_later(void* to, const void* from, bool there) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  ::cuda_shim::copy_later(to, from, kBytes, there);
}
inline void wait_for_copies() { ::cuda_shim::wait_for_copies(); }

}  // namespace megatron::kernels::cuda
