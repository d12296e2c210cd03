// One matrix product on the calling thread, by oneDNN (kernels/cpu/onednn) or, in a build without
// it, by plain loops (kernels/cpu/without_onednn); and what all products of the host share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace megatron::kernels::cpu {

// c = op(a) op(b) + bias + (accumulate ? c : 0), sums in f32, rounded once.
//   a [m,k] (transpose_a: [k,m]), b [k,n] (transpose_b: [n,k]), c [m,n], bias [n] or null; m, n, k
//   at least 1. Rows lie lda, ldb, ldc elements apart, each at least the row's length. in: f32 or
//   bf16, the type of a and b. out: that of c: `in`, or f32. bias_type: that of bias.
struct Product {
  int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const void* bias = nullptr;
  int64_t lda = 0, ldb = 0, ldc = 0;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  DType in = DType::f32, out = DType::f32, bias_type = DType::f32;
};

// Primitives and their memory are kept by the thread that ran them (a bounded map by shape), so
// that a shape that was met before costs neither allocation nor compilation. bf16 needs native
// bf16_products().
void multiply(const Product& product);
bool has_library();  // whether that is oneDNN

// How bf16 is multiplied: by the processor's products of bf16 pairs, or widened to f32 block by
// block (slower, more exact).
enum class Bf16Products { native, widened };

// native: the processor has AVX512_BF16. Otherwise the callers of this header widen.
Bf16Products bf16_products();

// A buffer of the calling thread, kept and grown between calls; `primitive` belongs to `multiply`,
// the others to its caller. Aligned to 64 bytes; valid until the next call with the same slot.
enum class Slot { primitive, a, b, c, count };
std::byte* thread_buffer(Slot slot, int64_t bytes);

}  // namespace megatron::kernels::cpu
