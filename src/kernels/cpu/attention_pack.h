// Attention operands as words and panels (kernels/cpu/tiles.h), and results back to tensors.
#pragma once

#include <cstddef>

#include "base/dtype.h"
#include "kernels/cpu/tiles.h"
#include "tensor/tensor.h"

namespace megatron::kernels::cpu {

// The rows of one (sample, key head) of a [B,T,N,D] tensor: row r is position r / group, head r %
// group of the key head's `group` query heads (1 for keys and values).
struct HeadRows {
  HeadRows(const Tensor& tensor, int64_t sample, int64_t key_head, int64_t group);
  std::byte* row(int64_t r) const {
    return base + ((r / group) * position_stride + r % group * head_stride) * element_size;
  }
  std::byte* base;
  int64_t position_stride, head_stride, group, width, element_size;
  DType type;
};

// Rows [begin, begin + count) as words [padded][words(width)]; rows beyond count are zero. bf16
// becomes pairs or f32.
void pack_rows(const HeadRows& rows, int64_t begin, int64_t count, int64_t padded, WordKind kind,
               uint32_t* out);

// Rows of words [rows][width] -> panels of their transpose: [rows / 32][width][32]. rows: a
// multiple of 32.
void transpose_to_panels(const uint32_t* from, int64_t rows, int64_t width, uint32_t* out);

// Rows of words -> panels of the matrix itself, summed over rows: [columns / 32][words(rows)][32].
// columns: the elements of a row, padded with zeros to a multiple of 32; rows: even.
void rows_to_panels(WordKind kind, const uint32_t* from, int64_t rows, int64_t width,
                    int64_t columns, uint32_t* out);

// rows[begin + i] = factors[i] * values[i * stride ...] (factors null: 1), rounded to the tensor's
// type.
void unpack_rows(const HeadRows& rows, int64_t begin, int64_t count, const float* values,
                 int64_t stride, const float* factors);

// Sum over d of a[r, d] * b[r, d] in f32.
float row_product(const HeadRows& a, const HeadRows& b, int64_t r);

}  // namespace megatron::kernels::cpu
