#include "kernels/cpu/products/double_product.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cpu/products/tiles.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/thread_buffer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/products/double_product.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

#ifndef MEGATRON_KERNELS_CPU_DOUBLE_SLICE
#define MEGATRON_KERNELS_CPU_DOUBLE_SLICE
namespace megatron::kernels::cpu {
// A number of columns that is a multiple of every instruction set's vector.
inline constexpr int64_t kDoubleColumns = 16;

// A slice of k: a [m][depth], b [depth][stride], whose columns from n on are zeros.
struct DoubleSlice {
  int64_t m, stride, depth;
  const double *a, *b;
  double* c;
  bool accumulate;
};
}  // namespace megatron::kernels::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

using DoubleLanes = hn::ScalableTag<double>;
inline constexpr DoubleLanes kDoubles{};
inline constexpr int64_t kDoubleLanes = HWY_LANES(double), kPair = 2 * kDoubleLanes;
static_assert(kDoubleColumns % kPair == 0);
// Rows that are summed at once, by two vectors of columns (kernels/cpu/products/tiles.cpp).
#if HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM_A64
inline constexpr int64_t kDoubleRows = 8;
#else
inline constexpr int64_t kDoubleRows = 6;
#endif

template <int64_t R>
HWY_INLINE void sum_double_rows(const DoubleSlice& s, int64_t i, int64_t j) {
  hn::Vec<DoubleLanes> low[R], high[R];
  double* c = s.c + i * s.stride + j;
#pragma GCC unroll 8
  for (int64_t r = 0; r < R; ++r) {
    low[r] = s.accumulate ? hn::LoadU(kDoubles, c + r * s.stride) : hn::Zero(kDoubles);
    high[r] =
        s.accumulate ? hn::LoadU(kDoubles, c + r * s.stride + kDoubleLanes) : hn::Zero(kDoubles);
  }
  const double *a = s.a + i * s.depth, *b = s.b + j;
  for (int64_t l = 0; l < s.depth; ++l, b += s.stride) {
    const auto b_low = hn::LoadU(kDoubles, b), b_high = hn::LoadU(kDoubles, b + kDoubleLanes);
#pragma GCC unroll 8
    for (int64_t r = 0; r < R; ++r) {
      const auto factor = hn::Set(kDoubles, a[r * s.depth + l]);
      low[r] = hn::MulAdd(factor, b_low, low[r]);
      high[r] = hn::MulAdd(factor, b_high, high[r]);
    }
  }
#pragma GCC unroll 8
  for (int64_t r = 0; r < R; ++r) {
    hn::StoreU(low[r], kDoubles, c + r * s.stride);
    hn::StoreU(high[r], kDoubles, c + r * s.stride + kDoubleLanes);
  }
}

// Sums fewer than kDoubleRows rows.
template <int64_t R = kDoubleRows - 1>
void sum_last_double_rows(const DoubleSlice& s, int64_t rows, int64_t i, int64_t j) {
  if constexpr (R > 0) {
    if (rows == R) return sum_double_rows<R>(s, i, j);
    sum_last_double_rows<R - 1>(s, rows, i, j);
  }
}

void multiply_slice(const DoubleSlice& s) {
  for (int64_t j = 0; j < s.stride; j += kPair) {
    int64_t i = 0;
    for (; i + kDoubleRows <= s.m; i += kDoubleRows) sum_double_rows<kDoubleRows>(s, i, j);
    sum_last_double_rows(s, s.m - i, i, j);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(multiply_slice);

namespace {

// Slice length along k: both operands' slices stay in the L2 cache.
constexpr int64_t kSlice = 256;

template <class T>
double widened(T x) {
  if constexpr (sizeof(T) < sizeof(float)) {
    return static_cast<float>(x);
  } else {
    return x;
  }
}

// to[i * row + l * step] = element (i, l). Elements that are adjacent in memory are read
// consecutively.
template <class T>
void pack(const DoubleProduct::Operand& from, int64_t places, int64_t depth, int64_t row,
          int64_t step, double* to) {
  const T* x = reinterpret_cast<const T*>(from.at);
  if (from.step == 1) {
    for (int64_t i = 0; i < places; ++i)
      for (int64_t l = 0; l < depth; ++l) to[i * row + l * step] = widened(x[i * from.place + l]);
    return;
  }
  for (int64_t l = 0; l < depth; ++l)
    for (int64_t i = 0; i < places; ++i)
      to[i * row + l * step] = widened(x[i * from.place + l * from.step]);
}

template <class T>
void multiply(const DoubleProduct& p) {
  const int64_t stride = double_stride(p.n), most = std::min(p.k, kSlice);
  auto* a = reinterpret_cast<double*>(thread_buffer(Slot::a, p.m * most * 8));
  auto* b = reinterpret_cast<double*>(thread_buffer(Slot::b, most * stride * 8));
  const auto from = [](DoubleProduct::Operand operand, int64_t k) {
    operand.at += k * operand.step * static_cast<int64_t>(sizeof(T));
    return operand;
  };
  for (int64_t k = 0; k < p.k; k += kSlice) {
    const int64_t depth = std::min(kSlice, p.k - k);
    pack<T>(from(p.a, k), p.m, depth, depth, 1, a);
    pack<T>(from(p.b, k), p.n, depth, 1, stride, b);
    for (int64_t l = 0; l < depth; ++l) std::fill(b + l * stride + p.n, b + (l + 1) * stride, 0.0);
    HWY_DYNAMIC_DISPATCH(multiply_slice)
    ({.m = p.m, .stride = stride, .depth = depth, .a = a, .b = b, .c = p.c, .accumulate = k > 0});
  }
}

}  // namespace

int64_t double_stride(int64_t n) { return round_up(n, kDoubleColumns); }

void double_product(const DoubleProduct& product) {
  switch (product.type) {
    case DType::f64: return multiply<double>(product);
    case DType::f32: return multiply<float>(product);
    default: MG_ASSERT(product.type == DType::bf16); return multiply<bf16>(product);
  }
}

}  // namespace megatron::kernels::cpu
#endif
