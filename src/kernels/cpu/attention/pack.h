// Converts attention operands to words (kernels/cpu/products/tiles.h), and results back to tensors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>

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
  // Rows from `begin` on; the group must be 1.
  MatrixRows from(int64_t begin) const { return {row(begin), position_stride, type}; }
  std::byte* base;
  int64_t position_stride, head_stride, group, width, element_size;
  DType type;
};

// The keys or values of one (sample, key head): [B,S,K,D], or pages of them.
class KeyRows {
 public:
  // tensor: k or v of the call.
  KeyRows(const Tensor& tensor, const Tensor& block_table, int64_t sample, int64_t key_head);
  // Rows from j on, valid up to `stretch(j)`.
  MatrixRows from(int64_t j) const {
    return {base_ + (start(j / page_) + j % page_ * stride_) * size_of(type_), stride_, type_};
  }
  // Calls f(offset, count) for the parts of [begin, begin + count) that lie within one page each,
  // in order.
  template <class F>
  void for_pages(int64_t begin, int64_t count, F&& f) const {
    for (int64_t at = 0; at < count;) {
      const int64_t part = std::min(count - at, page_ - (begin + at) % page_);
      f(at, part);
      at += part;
    }
  }

 private:
  int64_t start(int64_t block) const {
    return table_ == nullptr ? 0 : table_[block] * page_stride_;
  }

  std::byte* base_;
  const int32_t* table_;  // of the sample; null: a single page holds all
  int64_t page_, page_stride_, stride_;
  DType type_;
};

// Prefetches rows [begin, begin + count), which a later call reads.
void prefetch_rows(const HeadRows& rows, int64_t begin, int64_t count);

// Converts rows [begin, begin + count) to words [padded][words(width)]; rows beyond count are zero.
// bf16 becomes pairs or f32.
void pack_rows(const HeadRows& rows, int64_t begin, int64_t count, int64_t padded, WordKind kind,
               uint32_t* out);

// rows[begin + i] = factors[i] * values[i * stride ...] (factors null: 1), rounded to the tensor's
// type; a zero is +0.
void unpack_rows(const HeadRows& rows, int64_t begin, int64_t count, const float* values,
                 int64_t stride, const float* factors);

// rows[begin + i] += values[i * stride ...], rounded to the tensor's type.
void add_rows(const HeadRows& rows, int64_t begin, int64_t count, const float* values,
              int64_t stride);

// out[i] = sum over d of a[begin + i, d] * b[begin + i, d] in f32, in the same order for every
// vector width.
void row_products(const HeadRows& a, const HeadRows& b, int64_t begin, int64_t count, float* out);

}  // namespace megatron::kernels::cpu
