// What the tiles of grouped products read. A tile of a product, out[i][j] = sum over d of a(i, d)
// b(j, d), has rows of results for its operand a and columns for b: both are called places here.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/chunk.h"
#include "kernels/cuda/wide.h"

namespace megatron::kernels::cuda {

// Threads of a block, and blocks that share a multiprocessor's registers.
inline constexpr int kProductThreads = 256, kProductBlocks = 2;

// From the tile's first place on. kDepthInside: a place is a row in memory, and depth lies along
// it; else the rows are depths, and places lie along them.
template <class T, bool kDepthInside>
struct Operand {
  const T* data;
  int64_t pitch;  // of rows in memory
  int64_t places;
  bool whole;  // rows in memory are a number of chunks of 16 bytes, at multiples of that

  Operand() = default;
  Operand(const Tensor& tensor, int64_t width)
      : data(address_of<T>(tensor)),
        pitch(width),
        places(0),
        whole(width % kChunk<T> == 0 && are_aligned({data})) {}

  // From `rows` rows in memory and `inside` elements on, with so many places.
  __device__ Operand at(int64_t rows, int64_t inside, int64_t count) const {
    Operand part = *this;
    part.data += rows * pitch + inside;
    part.places = count;
    return part;
  }
};

}  // namespace megatron::kernels::cuda
