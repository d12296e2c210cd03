#include "kernels/cpu/transpose.h"

#include <type_traits>

#include "kernels/cpu/rows_ahead.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/transpose.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {

// Elements, or their bits: those of 16 in the lower halves of words.
template <class T>
HWY_INLINE V load_element(const T* p, Whole) {
  if constexpr (std::is_same_v<T, uint16_t>) {
    return hn::BitCast(kFloats, hn::PromoteTo(Words(), hn::LoadU(Halves(), p)));
  } else {
    return load(p);
  }
}
template <class T>
HWY_INLINE V load_element(const T* p, Part part) {
  T buffer[kLanes] = {};
  std::memcpy(static_cast<void*>(buffer), p, static_cast<size_t>(part.n) * sizeof(T));
  return load_element(buffer, Whole{});
}

// Words of two elements of 16 bits: a in the lower halves.
HWY_INLINE V pair(V a, V b, bf16) { return hn::BitCast(kFloats, rounded_two({a, b})); }
HWY_INLINE V pair(V a, V b, uint16_t) {
  const auto upper = hn::ShiftLeft<16>(hn::BitCast(Words(), b));
  return hn::BitCast(kFloats, hn::Or(hn::BitCast(Words(), a), upper));
}

using Square = V[kLanes];

// Four rows of fours of columns: in each block of 128 bits, element i of row j goes to row i.
HWY_INLINE void turn_in_blocks(V& a, V& b, V& c, V& d) {
  const hn::RepartitionToWide<Floats> pairs;
  const auto low = hn::BitCast(pairs, hn::InterleaveLower(kFloats, a, b));
  const auto high = hn::BitCast(pairs, hn::InterleaveUpper(kFloats, a, b));
  const auto low2 = hn::BitCast(pairs, hn::InterleaveLower(kFloats, c, d));
  const auto high2 = hn::BitCast(pairs, hn::InterleaveUpper(kFloats, c, d));
  a = hn::BitCast(kFloats, hn::InterleaveLower(pairs, low, low2));
  b = hn::BitCast(kFloats, hn::InterleaveUpper(pairs, low, low2));
  c = hn::BitCast(kFloats, hn::InterleaveLower(pairs, high, high2));
  d = hn::BitCast(kFloats, hn::InterleaveUpper(pairs, high, high2));
}

// v[i][j] goes to v[j][i].
HWY_INLINE void turn(Square& v) {
  for (int64_t i = 0; i < kLanes; i += 4) turn_in_blocks(v[i], v[i + 1], v[i + 2], v[i + 3]);
  if constexpr (kLanes == 8) {
    for (int64_t i = 0; i < 4; ++i) {
      const V a = v[i], b = v[4 + i];
      v[i] = hn::ConcatLowerLower(kFloats, b, a);
      v[4 + i] = hn::ConcatUpperUpper(kFloats, b, a);
    }
  } else if constexpr (kLanes == 16) {
    for (int64_t i = 0; i < 4; ++i) {
      const V a = v[i], b = v[4 + i], c = v[8 + i], d = v[12 + i];
      const V even = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(b), a);
      const V odd = hn::OddEvenBlocks(b, hn::SwapAdjacentBlocks(a));
      const V even2 = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(d), c);
      const V odd2 = hn::OddEvenBlocks(d, hn::SwapAdjacentBlocks(c));
      v[i] = hn::ConcatLowerLower(kFloats, even2, even);
      v[4 + i] = hn::ConcatLowerLower(kFloats, odd2, odd);
      v[8 + i] = hn::ConcatUpperUpper(kFloats, even2, even);
      v[12 + i] = hn::ConcatUpperUpper(kFloats, odd2, odd);
    }
  }
}

// Columns of a vector of out: a cache line of AVX-512.
template <class To>
inline constexpr int64_t kColumns = kLanes * 4 / static_cast<int64_t>(sizeof(To));
inline constexpr bool kWritesLines = kLanes * 4 == kCacheLine;

template <class To>
HWY_INLINE void store_row(V v, Output<To> out, int64_t count) {
  alignas(64) float row[kLanes];
  if (count == kColumns<To>) {
    auto* p = reinterpret_cast<float*>(out.p);
    if (kWritesLines && out.streamed) {
      hn::Stream(v, kFloats, p);
    } else {
      hn::StoreU(v, kFloats, p);
    }
    return;
  }
  hn::Store(v, kFloats, row);
  std::memcpy(static_cast<void*>(out.p), row, static_cast<size_t>(count) * sizeof(To));
}

// Up to kLanes rows of up to a vector of columns.
template <class From, class To, class Rows>
HWY_INLINE void turn_square(const From* x, const int64_t* columns, int64_t count, Rows n,
                            int64_t rows, Output<To> out, int64_t out_stride) {
  const auto column = [&](int64_t c) {
    return load_element(x + columns[std::min(c, count - 1)], n);
  };
  Square v;
  for (int64_t i = 0; i < kLanes; ++i) {
    if constexpr (sizeof(To) == sizeof(float)) {
      v[i] = column(i);
    } else {
      v[i] = pair(column(2 * i), column(2 * i + 1), To());
    }
  }
  turn(v);
  for (int64_t r = 0; r < rows; ++r) store_row(v[r], out + r * out_stride, count);
}

template <class From, class To>
HWY_INLINE void turn_part(const From* x, std::span<const int64_t> columns, int64_t rows,
                          Output<To> out, int64_t out_stride) {
  const auto width = static_cast<int64_t>(columns.size());
  for (int64_t c = 0; c < width; c += kColumns<To>) {
    const int64_t count = std::min(kColumns<To>, width - c);
    const int64_t* places = columns.data() + c;
    int64_t r = 0;
    const int64_t next = std::min(kColumns<To>, width - c - count);  // columns to ask for
    if (count == kColumns<To>) {
      for (; r + kLanes <= rows; r += kLanes) {
        for (int64_t i = r * next / rows; i < (r + kLanes) * next / rows; ++i)
          ask_for(x + places[count + i], rows * static_cast<int64_t>(sizeof(From)));
        turn_square(x + r, places, kColumns<To>, Whole{}, kLanes, out + r * out_stride + c,
                    out_stride);
      }
    }
    for (; r < rows; r += kLanes) {
      const int64_t height = std::min(kLanes, rows - r);
      turn_square(x + r, places, count, Part{height}, height, out + r * out_stride + c, out_stride);
    }
  }
}

void transpose_words(const float* x, std::span<const int64_t> columns, int64_t rows,
                     Output<float> out, int64_t out_stride) {
  turn_part(x, columns, rows, out, out_stride);
}
void transpose_halves(const uint16_t* x, std::span<const int64_t> columns, int64_t rows,
                      Output<uint16_t> out, int64_t out_stride) {
  turn_part(x, columns, rows, out, out_stride);
}
void transpose_narrow(const float* x, std::span<const int64_t> columns, int64_t rows,
                      Output<bf16> out, int64_t out_stride) {
  turn_part(x, columns, rows, out, out_stride);
}
void transpose_widen(const bf16* x, std::span<const int64_t> columns, int64_t rows,
                     Output<float> out, int64_t out_stride) {
  turn_part(x, columns, rows, out, out_stride);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(transpose_words);
HWY_EXPORT(transpose_halves);
HWY_EXPORT(transpose_narrow);
HWY_EXPORT(transpose_widen);

void transpose(const float* x, std::span<const int64_t> columns, int64_t rows, Output<float> out,
               int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(transpose_words)(x, columns, rows, out, out_stride);
}
void transpose(const uint16_t* x, std::span<const int64_t> columns, int64_t rows,
               Output<uint16_t> out, int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(transpose_halves)(x, columns, rows, out, out_stride);
}
void transpose(const float* x, std::span<const int64_t> columns, int64_t rows, Output<bf16> out,
               int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(transpose_narrow)(x, columns, rows, out, out_stride);
}
void transpose(const bf16* x, std::span<const int64_t> columns, int64_t rows, Output<float> out,
               int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(transpose_widen)(x, columns, rows, out, out_stride);
}

}  // namespace megatron::kernels::cpu
#endif
