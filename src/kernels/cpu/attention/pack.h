// Attention operands as words (kernels/cpu/products/tiles.h), and results back to tensors.
#pragma once

#include <cstddef>

#include "base/dtype.h"
#include "kernels/cpu/products/panels.h"
#include "tensor/tensor.h"

namespace megatron::kernels::cpu {

// The rows of one (sample, key head) of a [B,T,N,D] tensor: row r is position r / group, head r %
// group of the key head's `group` query heads (1 for keys and values).
struct HeadRows {
  HeadRows(const Tensor& tensor, int64_t sample, int64_t key_head, int64_t group);
  std::byte* row(int64_t r) const {
    return base + ((r / group) * position_stride + r % group * head_stride) * element_size;
  }
  // Rows from `begin` on, where the group is 1.
  MatrixRows from(int64_t begin) const { return {row(begin), position_stride, type}; }
  std::byte* base;
  int64_t position_stride, head_stride, group, width, element_size;
  DType type;
};

// Asks for rows [begin, begin + count), which a later call reads.
void prefetch_rows(const HeadRows& rows, int64_t begin, int64_t count);

// Rows [begin, begin + count) as words [padded][words(width)]; rows beyond count are zero. bf16
// becomes pairs or f32.
void pack_rows(const HeadRows& rows, int64_t begin, int64_t count, int64_t padded, WordKind kind,
               uint32_t* out);

// rows[begin + i] = factors[i] * values[i * stride ...] (factors null: 1), rounded to the tensor's
// type; a zero is +0.
void unpack_rows(const HeadRows& rows, int64_t begin, int64_t count, const float* values,
                 int64_t stride, const float* factors);

// rows[begin + i] += values[i * stride ...], rounded to the tensor's type.
void add_rows(const HeadRows& rows, int64_t begin, int64_t count, const float* values,
              int64_t stride);

// out[i] = sum over d of a[begin + i, d] * b[begin + i, d] in f32, in one order for every width of
// vector.
void row_products(const HeadRows& a, const HeadRows& b, int64_t begin, int64_t count, float* out);

}  // namespace megatron::kernels::cpu
