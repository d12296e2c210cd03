// Products of 16-bit numbers on tensor cores with f32 sums, and loads of their operands (PTX ISA:
// mma.sync.m16n8k16, ldmatrix, cp.async; compute capability 8.0). All lanes of a warp call the
// first three functions.
//
// Fragments of a warp's lane 4 g + t (g < 8, t < 4); adjacent pairs share one word, the lower
// element first:
//   8 x 8 matrix       row g, columns 2 t and 2 t + 1
//   a, 16 x 16         four matrices: rows 0-7 and 8-15 of columns 0-7, then of columns 8-15
//   b, 16 x 8          of its transpose two matrices: columns 0-7, then 8-15
//   c, 16 x 8 in f32   row g, columns 2 t and 2 t + 1; then the same of row g + 8
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/numbers.h"

namespace megatron::kernels::cuda {

struct Matrices {
  uint32_t at[4];
};

// Reads four 8 x 8 matrices from shared memory: lane 8 m + r gives the address of row r of matrix
// m, a multiple of 16 bytes.
__device__ inline Matrices load_matrices(const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  Matrices m;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m.at[0]), "=r"(m.at[1]), "=r"(m.at[2]), "=r"(m.at[3])
               : "r"(address)
               : "memory");
  return m;
}
// As load_matrices, but transposes each matrix.
__device__ inline Matrices load_transposed(const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  Matrices m;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m.at[0]), "=r"(m.at[1]), "=r"(m.at[2]), "=r"(m.at[3])
               : "r"(address)
               : "memory");
  return m;
}

// c += a b, where b is {b0, b1}.
template <class T>
__device__ void multiply_add(const Matrices& a, uint32_t b0, uint32_t b1, float (&c)[4]) {
  if constexpr (std::is_same_v<T, Bf16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b0), "r"(b1));
  } else {
    static_assert(std::is_same_v<T, F16>);
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b0), "r"(b1));
  }
}

// Starts an asynchronous copy of kBytes (4, 8 or 16) to shared memory. If `there` is false it
// writes zeros and reads nothing. Both addresses are multiples of kBytes. The data is valid once
// the thread has waited for it.
template <int kBytes>
__device__ void copy_later(void* to, const void* from, bool there) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  const int read = there ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(address), "l"(from), "r"(read)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :
                 : "r"(address), "l"(from), "n"(kBytes), "r"(read)
                 : "memory");
  }
}
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" : : : "memory"); }

}  // namespace megatron::kernels::cuda
