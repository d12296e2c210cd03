// Operands of grouped products. A tile of a product, out[i][j] = sum over d of a(i, d) b(j, d), has
// result rows from operand a and columns from b. Both are called places here, and d a depth.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/chunk.h"
#include "kernels/cuda/wide.h"

namespace megatron::kernels::cuda {

// Threads per block, and blocks that share a multiprocessor's registers.
inline constexpr int kProductThreads = 256, kProductBlocks = 2;

// An operand from the tile's first place on. If kDepthInside, each row in memory is a place, with
// depths along it; else each row is a depth, with places along it.
template <class T, bool kDepthInside>
struct Operand {
  static constexpr bool kInside = kDepthInside;
  const T* data;
  int64_t pitch;  // row stride in elements
  int64_t places;
  bool whole;  // rows in memory consist of whole, aligned 16-byte chunks

  Operand() = default;
  Operand(const Tensor& tensor, int64_t width)
      : data(address_of<T>(tensor)),
        pitch(width),
        places(0),
        whole(width % kChunk<T> == 0 && are_aligned({data})) {}

  // The operand moved by `rows` rows in memory and `inside` elements, with `count` places.
  __device__ Operand at(int64_t rows, int64_t inside, int64_t count) const {
    Operand part = *this;
    part.data += rows * pitch + inside;
    part.places = count;
    return part;
  }
  __device__ auto value(int64_t place, int64_t depth) const {
    return widen(data[kInside ? place * pitch + depth : depth * pitch + place]);
  }
};

// Factors by which operands have been multiplied; null: none.
struct ProductScales {
  const float *a, *b;

  ProductScales(const Tensor& a_scale, const Tensor& b_scale)
      : a(address_of<float>(a_scale)), b(address_of<float>(b_scale)) {}
  template <class Sum>
  __device__ Sum factor() const {
    return (a == nullptr ? Sum(1) : Sum(1) / Sum(*a)) * (b == nullptr ? Sum(1) : Sum(1) / Sum(*b));
  }
};

}  // namespace megatron::kernels::cuda
