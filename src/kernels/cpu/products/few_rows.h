// Products of few rows with a matrix that is read in place instead of being packed first.
// Generation spends most of its time in these, including those of attention.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/function_ref.h"
#include "kernels/cpu/products/panels.h"
#include "kernels/cpu/products/tiles.h"

namespace megatron::kernels::cpu {

// Row i of a, with `elements` elements, is at a + i * a_row in words(kind, elements) words; an odd
// last element is paired with 0. b is bf16 if words are pairs, else f32, or bf16 that is widened.
// Adds to c [m,n] if `accumulate`. Each element has the bits that tile_product gives it.
struct FewRowsProduct {
  int64_t m, n, elements;
  const uint32_t* a;
  int64_t a_row;
  MatrixRows b;
  float* c;
  int64_t ldc;
  bool accumulate;
  int64_t after = 0;  // rows that follow b and are read next
  // If given, the caller prefetches b, and this is called between instructions, with numbers of
  // lines that add up to those read, to prefetch what is read later. Some kinds call it once.
  const FunctionRef<void(int64_t lines)>* meanwhile = nullptr;
};

inline constexpr int64_t kFewRows = 8;

// Calls f with m, in [1, M], as a constant.
template <int64_t M = kFewRows, class F>
void with_rows(int64_t m, F f) {
  if constexpr (M > 0) {
    if (m == M) return f(std::integral_constant<int64_t, M>());
    with_rows<M - 1>(m, f);
  }
}

// True if these products support m rows of this kind, which the processor must support, with a b of
// this type.
bool takes_few_rows(WordKind kind, DType type, int64_t m);

// c = a b^T: b has n rows of `elements` elements.
void few_rows_product_nt(WordKind kind, const FewRowsProduct& product);
// c = a b: b has `elements` rows of n elements. Rows of c must have room for n rounded up to
// kPanel; the values beyond n are meaningless.
void few_rows_product_nn(WordKind kind, const FewRowsProduct& product);

}  // namespace megatron::kernels::cpu
