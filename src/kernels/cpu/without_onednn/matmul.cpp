#include "kernels/cpu/matmul.h"

#include <algorithm>

#include "base/error.h"

namespace megatron::kernels::cpu {

namespace {

template <class In>
float sum_of(const Product& p, int64_t i, int64_t j) {
  const In* a = static_cast<const In*>(p.a) + (p.transpose_a ? i : i * p.lda);
  const In* b = static_cast<const In*>(p.b) + (p.transpose_b ? j * p.ldb : j);
  const int64_t a_step = p.transpose_a ? p.lda : 1, b_step = p.transpose_b ? 1 : p.ldb;
  float sum = 0;
  for (int64_t k = 0; k < p.k; ++k)
    sum += static_cast<float>(a[k * a_step]) * static_cast<float>(b[k * b_step]);
  return sum;
}

float bias_of(const Product& p, int64_t j) {
  if (p.bias == nullptr) return 0;
  return p.bias_type == DType::f32 ? static_cast<const float*>(p.bias)[j]
                                   : static_cast<float>(static_cast<const bf16*>(p.bias)[j]);
}

template <class In, class Out>
void multiply_as(const Product& p) {
  for (int64_t i = 0; i < p.m; ++i) {
    Out* row = static_cast<Out*>(p.c) + i * p.ldc;
    for (int64_t j = 0; j < p.n; ++j) {
      const float before = p.accumulate ? static_cast<float>(row[j]) : 0.0f;
      row[j] = static_cast<Out>(sum_of<In>(p, i, j) + bias_of(p, j) + before);
    }
  }
}

}  // namespace

void multiply(const Product& product) {
  MG_ASSERT(product.in == DType::f32 || product.in == DType::bf16);
  MG_ASSERT(product.out == product.in || product.out == DType::f32);
  if (product.in == DType::f32) return multiply_as<float, float>(product);
  if (product.out == DType::f32) return multiply_as<bf16, float>(product);
  multiply_as<bf16, bf16>(product);
}

bool has_library() { return false; }

}  // namespace megatron::kernels::cpu
