// Selects the tile that computes a grouped product.
#pragma once

#include "kernels/cuda/grouped_gemm/plain_tile.h"
#include "kernels/cuda/grouped_gemm/tensor_core_tile.h"

namespace megatron::kernels::cuda {

// Calls f with a tile that suits about that many rows. An element's bits do not depend on the
// choice.
template <class T, bool kInsideA, bool kInsideB, class F>
void for_product_tile(int64_t rows, F&& f) {
  if constexpr (sizeof(T) > 2) {
    f(PlainTile<Wide<T>>{});
  } else if (rows <= 64) {
    f(TensorCoreTile<T, kInsideA, kInsideB, 64>{});
  } else {
    f(TensorCoreTile<T, kInsideA, kInsideB, 128>{});
  }
}

// True if rows of this width are read and written as vectors of up to four.
template <class T>
bool is_whole(const T* p, int64_t width) {
  return width % 4 == 0 && are_aligned({p});
}

}  // namespace megatron::kernels::cuda
