#include "kernels/cpu/products/tiles.h"

#include "base/error.h"
#include "kernels/cpu/products/amx_products.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/products/tiles.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

// Rows that are summed at once, by two vectors of columns: as many as the 32 or 16 registers can
// hold. Twelve sums keep two units with a latency of 4 to 5 cycles busy.
#if HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM_A64
inline constexpr int64_t kRows = 8, kStripRows = kRows;
#else
inline constexpr int64_t kRows = 6, kStripRows = 2 * kRows;
#endif
inline constexpr int64_t kCols = 2 * kLanes;

// Sums rows [i, i + R), columns [j, j + kCols).
template <int64_t R>
HWY_INLINE void sum_rows(const TileProduct& p, int64_t i, int64_t j) {
  V low[R], high[R];
  float* c = p.c + i * p.ldc + j;
#pragma GCC unroll 8
  for (int64_t r = 0; r < R; ++r) {
    low[r] = p.accumulate ? load(c + r * p.ldc) : set(0);
    high[r] = p.accumulate ? load(c + r * p.ldc + kLanes) : set(0);
  }
  const float* a = reinterpret_cast<const float*>(p.a) + i * p.a_row;
  const float* b = reinterpret_cast<const float*>(p.b) + j / kPanel * p.panel + j % kPanel;
  for (int64_t l = 0; l < p.k; ++l, a += p.a_step, b += kPanel) {
    const V b_low = load(b), b_high = load(b + kLanes);
#pragma GCC unroll 8
    for (int64_t r = 0; r < R; ++r) {
      const V factor = set(a[r * p.a_row]);
      low[r] = hn::MulAdd(factor, b_low, low[r]);
      high[r] = hn::MulAdd(factor, b_high, high[r]);
    }
  }
#pragma GCC unroll 8
  for (int64_t r = 0; r < R; ++r) {
    store(low[r], c + r * p.ldc);
    store(high[r], c + r * p.ldc + kLanes);
  }
}

// Sums fewer than kRows rows.
template <int64_t R = kRows - 1>
void sum_fewer_rows(const TileProduct& p, int64_t rows, int64_t i, int64_t j) {
  if constexpr (R > 0) {
    if (rows == R) return sum_rows<R>(p, i, j);
    sum_fewer_rows<R - 1>(p, rows, i, j);
  }
}

// Number of the remaining rows to process together. The last rows are split into two parts of
// similar size, since one or two rows alone would stall on each sum.
int64_t rows_at_once(int64_t left) {
  if (left <= kRows) return left;
  return left < kRows + kRows / 2 ? kRows / 2 + 1 : kRows;
}

void product_f32(const TileProduct& p) {
  for (int64_t j = 0; j < p.n; j += kCols) {
    for (int64_t i = 0; i < p.m;) {
      const int64_t rows = rows_at_once(p.m - i);
      rows == kRows ? sum_rows<kRows>(p, i, j) : sum_fewer_rows(p, rows, i, j);
      i += rows;
    }
  }
}

int64_t strip_f32() { return kStripRows; }
TileSet set_of_target() {
  return HWY_TARGET == HWY_AVX3   ? TileSet::avx512
         : HWY_TARGET == HWY_AVX2 ? TileSet::avx2
                                  : TileSet::other;
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace megatron::kernels::cpu {

HWY_EXPORT(product_f32);
HWY_EXPORT(strip_f32);
HWY_EXPORT(set_of_target);

namespace {

#if defined(__x86_64__)
// Highway 1.0 has no function for the bf16 products of AVX512_BF16.
template <int64_t R>
__attribute__((target("avx512f,avx512bf16"))) void sum_row_pairs(const TileProduct& p, int64_t i,
                                                                 int64_t j) {
  __m512 low[R], high[R];
  float* c = p.c + i * p.ldc + j;
#pragma GCC unroll 8
  for (int64_t r = 0; r < R; ++r) {
    low[r] = p.accumulate ? _mm512_loadu_ps(c + r * p.ldc) : _mm512_setzero_ps();
    high[r] = p.accumulate ? _mm512_loadu_ps(c + r * p.ldc + 16) : _mm512_setzero_ps();
  }
  const uint32_t* a = p.a + i * p.a_row;
  const uint32_t* b = p.b + j / kPanel * p.panel;
  for (int64_t l = 0; l < p.k; ++l, a += p.a_step, b += kPanel) {
    const __m512bh b_low = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b));
    const __m512bh b_high = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b + 16));
#pragma GCC unroll 8
    for (int64_t r = 0; r < R; ++r) {
      const __m512bh factor =
          reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(a[r * p.a_row])));
      low[r] = _mm512_dpbf16_ps(low[r], factor, b_low);
      high[r] = _mm512_dpbf16_ps(high[r], factor, b_high);
    }
  }
#pragma GCC unroll 8
  for (int64_t r = 0; r < R; ++r) {
    _mm512_storeu_ps(c + r * p.ldc, low[r]);
    _mm512_storeu_ps(c + r * p.ldc + 16, high[r]);
  }
}

constexpr int64_t kPairRows = 8;

template <int64_t R = kPairRows - 1>
void sum_last_row_pairs(const TileProduct& p, int64_t i, int64_t j) {
  if constexpr (R > 0) {
    if (p.m - i == R) return sum_row_pairs<R>(p, i, j);
    sum_last_row_pairs<R - 1>(p, i, j);
  }
}

void product_bf16(const TileProduct& p) {
  for (int64_t j = 0; j < p.n; j += kPanel) {
    int64_t i = 0;
    for (; i + kPairRows <= p.m; i += kPairRows) sum_row_pairs<kPairRows>(p, i, j);
    sum_last_row_pairs(p, i, j);
  }
}
#else
constexpr int64_t kPairRows = 8;
void product_bf16(const TileProduct&) { MG_ASSERT(false); }
#endif

}  // namespace

void tile_product(WordKind kind, const TileProduct& product) {
  if (kind == WordKind::bf16_amx) return tile_product_amx(product);
  if (kind == WordKind::bf16_pair) return product_bf16(product);
  HWY_DYNAMIC_DISPATCH(product_f32)(product);
}

int64_t tile_strip(WordKind kind) {
  if (kind == WordKind::bf16_amx) return kAmxStrip;
  if (kind == WordKind::bf16_pair) return kPairRows;
  return HWY_DYNAMIC_DISPATCH(strip_f32)();
}
TileSet tile_set() { return HWY_DYNAMIC_DISPATCH(set_of_target)(); }

}  // namespace megatron::kernels::cpu
#endif
