// Operands of products on tensor cores (tensor_cores.h) from tiles in shared memory, whose rows
// begin at multiples of 16 bytes. Rows of a product come from its left operand and columns from its
// right one; both are called places here, and an index of its sum is a depth. If kDepthInside, each
// row of the tile is a place, with depths along it; else each row is a depth, with places along it.
#pragma once

#include "kernels/cuda/reduce.h"
#include "kernels/cuda/tensor_cores.h"

namespace megatron::kernels::cuda {

// 16 places and depths from (place, d) on.
template <bool kDepthInside, class T>
__device__ Matrices left_operand(const T* tile, int pitch, int place, int d) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if constexpr (kDepthInside)
    return load_matrices(tile + (place + lane % 16) * pitch + d + lane / 16 * 8);
  else
    return load_transposed(tile + (d + lane % 8 + lane / 16 * 8) * pitch + place +
                           lane / 8 % 2 * 8);
}
// The same as the right operands of two products, of eight places each.
template <bool kDepthInside, class T>
__device__ Matrices right_operand(const T* tile, int pitch, int place, int d) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if constexpr (kDepthInside)
    return load_matrices(tile + (place + lane % 8 + lane / 16 * 8) * pitch + d + lane / 8 % 2 * 8);
  else return load_transposed(tile + (d + lane % 16) * pitch + place + lane / 16 * 8);
}

}  // namespace megatron::kernels::cuda
