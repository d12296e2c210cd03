// The blocks that a product is divided into, and where their operands are.
#pragma once

#include "kernels/cpu/products/problem.h"

namespace megatron::kernels::cpu {

// The part of a problem that one block computes: rows [i, i + m), columns [j, j + n) of product
// `g`, a sum over [k, k + depth).
struct Block {
  int64_t g, i, j, m, n, k, depth;
};

// Addresses of the block's operands from element k of its sum on, of its results and its bias (null
// if there is none).
inline const std::byte* a_at(const Problem& p, const Block& block, int64_t k) {
  k += block.k;
  const int64_t offset = p.transpose_a ? k * p.lda + block.i : block.i * p.lda + k;
  return p.a + (block.g * p.batch_a + offset) * size_of(p.in);
}
inline const std::byte* b_at(const Problem& p, const Block& block, int64_t k) {
  k += block.k;
  const int64_t offset = p.transpose_b ? block.j * p.ldb + k : k * p.ldb + block.j;
  return p.b + (block.g * p.batch_b + offset) * size_of(p.in);
}
inline std::byte* out_at(const Problem& p, const Block& block) {
  return p.out + (block.g * p.batch_c + block.i * p.ldc + block.j) * size_of(p.result);
}
inline const std::byte* bias_at(const Problem& p, const Block& block) {
  if (p.bias == nullptr) return nullptr;
  return p.bias + (block.g * p.batch_bias + block.j) * size_of(p.bias_type);
}

// The calling thread's buffers for packed rows, packed columns and sums. They are large enough for
// a block of any kind, so that they do not grow when the first product of another kind runs.
struct ProductBuffers {
  uint32_t *rows, *panels;
  float* sums;
};
ProductBuffers product_buffers();

}  // namespace megatron::kernels::cpu
