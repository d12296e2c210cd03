// Element-wise work on rows [T,N] with a stride: each thread takes one chunk of a row.
#pragma once

#include "kernels/cuda/chunk.h"
#include "kernels/cuda/divisor.h"

namespace megatron::kernels::cuda {

template <class T>
struct StridedRows {
  explicit StridedRows(const Tensor& tensor)
      : p(static_cast<T*>(tensor.address())), stride(tensor.stride(0)) {}
  T* p;
  int64_t stride;

  bool in_chunks() const { return are_aligned({p}) && stride % kChunk<T> == 0; }
};

// The chunks of all rows. whole: every chunk is complete and begins at a multiple of 16 bytes.
struct RowChunks {
  template <class T>
  static RowChunks of(const char* kernel, const Tensor& x,
                      std::initializer_list<StridedRows<T>> tensors) {
    const int64_t width = x.size(1), chunks = ceil_div(width, int64_t{kChunk<T>});
    bool whole = width % kChunk<T> == 0;
    for (const StridedRows<T>& rows : tensors) whole = whole && rows.in_chunks();
    return {width, count_items(kernel, x.size(0) * chunks), Divisor(static_cast<uint32_t>(chunks)),
            whole};
  }
  int64_t width;
  uint32_t items;
  Divisor chunks;  // chunks per row
  bool whole;
};

// The chunk of this thread. `count` of its elements exist, none if the thread is beyond the last
// chunk.
template <class T>
struct ChunkOfRow {
  __device__ explicit ChunkOfRow(const RowChunks& all) : whole(all.whole) {
    const uint32_t item = blockIdx.x * kThreads + threadIdx.x, r = all.chunks.quotient(item);
    row = r;
    column = static_cast<int64_t>(item - r * all.chunks.value()) * kChunk<T>;
    count = item < all.items ? all.width - column : 0;
  }
  __device__ Vector<T, kChunk<T>> load(const StridedRows<T>& from) const {
    return load_chunk<kChunk<T>>(from.p + row * from.stride + column, count, whole);
  }
  __device__ void store(const StridedRows<T>& to, const Vector<T, kChunk<T>>& values) const {
    store_chunk(to.p + row * to.stride + column, values, count, whole);
  }
  int64_t row, column, count;
  bool whole;
};

}  // namespace megatron::kernels::cuda
