#include "kernels/cpu/products/panels.h"

#include <algorithm>
#include <array>

#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/products/panels.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

// Words of a row as stored in memory, or widened from bf16.
struct Stored {
  static constexpr int64_t kBytes = 4;
  static hn::Vec<Words> several(const std::byte* p) {
    return hn::LoadU(Words(), reinterpret_cast<const uint32_t*>(p));
  }
  static uint32_t one(const std::byte* p) {
    uint32_t word;
    std::memcpy(&word, p, 4);
    return word;
  }
};
struct Widened {
  static constexpr int64_t kBytes = 2;
  static hn::Vec<Words> several(const std::byte* p) {
    return hn::BitCast(Words(), load(reinterpret_cast<const bf16*>(p)));
  }
  static uint32_t one(const std::byte* p) {
    uint16_t half;
    std::memcpy(&half, p, 2);
    return static_cast<uint32_t>(half) << 16;
  }
};

// Stores blocks of four words, each four panel rows below the previous one.
template <int64_t N, class D>
HWY_INLINE void store_blocks(D d, hn::Vec<D> v, uint32_t* out) {
  if constexpr (N <= 4) {
    hn::StoreU(v, d, out);
  } else {
    const hn::Half<D> half;
    store_blocks<N / 2>(half, hn::LowerHalf(half, v), out);
    store_blocks<N / 2>(half, hn::UpperHalf(half, v), out + N / 2 * kPanel);
  }
}

// Transposes a vector of words of four rows.
template <class Source>
HWY_INLINE void transpose_four(const std::byte* from, int64_t row_bytes, uint32_t* out) {
  const Words d;
  const auto v0 = Source::several(from), v1 = Source::several(from + row_bytes),
             v2 = Source::several(from + 2 * row_bytes), v3 = Source::several(from + 3 * row_bytes);
  const auto even_low = hn::InterleaveLower(d, v0, v2), even_high = hn::InterleaveUpper(d, v0, v2);
  const auto odd_low = hn::InterleaveLower(d, v1, v3), odd_high = hn::InterleaveUpper(d, v1, v3);
  store_blocks<kLanes>(d, hn::InterleaveLower(d, even_low, odd_low), out);
  store_blocks<kLanes>(d, hn::InterleaveUpper(d, even_low, odd_low), out + kPanel);
  store_blocks<kLanes>(d, hn::InterleaveLower(d, even_high, odd_high), out + 2 * kPanel);
  store_blocks<kLanes>(d, hn::InterleaveUpper(d, even_high, odd_high), out + 3 * kPanel);
}

// Prefetches what the next panel reads in memory order: the hardware prefetcher cannot follow as
// many rows as a panel has.
class Ahead {
 public:
  Ahead(const std::byte* next, int64_t row_bytes, int64_t width_bytes)
      : at_(next), gap_(row_bytes - width_bytes), width_(width_bytes), left_(width_bytes) {}
  HWY_INLINE void lines(int64_t count) {
    if (at_ == nullptr) return;
    for (int64_t i = 0; i < count; ++i) {
      __builtin_prefetch(at_);
      at_ += kLineBytes;
      left_ -= kLineBytes;
      if (left_ > 0) continue;
      at_ += gap_ + left_;
      left_ = width_;
    }
  }

 private:
  static constexpr int64_t kLineBytes = 64;
  const std::byte* at_;
  int64_t gap_, width_, left_;
};

// Transposes whole words only, one cache line of each row at a time.
template <class Source>
void transpose_words(const MatrixRows& from, int64_t rows, int64_t width, const std::byte* next,
                     uint32_t* out) {
  constexpr int64_t kLine = 64 / Source::kBytes;
  const int64_t row_bytes = from.stride * size_of(from.type);
  const int64_t whole_rows = rows / 4 * 4, whole = width / kLanes * kLanes;
  Ahead ahead(next, row_bytes, width * Source::kBytes);
  if (rows < kPanel) std::fill_n(out, width * kPanel, 0u);
  for (int64_t begin = 0; begin < whole; begin += kLine) {
    const int64_t end = std::min(begin + kLine, whole);
    for (int64_t r = 0; r < whole_rows; r += 4) {
      const std::byte* row = from.base + r * row_bytes;
      ahead.lines(4);
      for (int64_t l = begin; l < end; l += kLanes)
        transpose_four<Source>(row + l * Source::kBytes, row_bytes, out + l * kPanel + r);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    const std::byte* row = from.base + r * row_bytes;
    for (int64_t l = r < whole_rows ? whole : 0; l < width; ++l)
      out[l * kPanel + r] = Source::one(row + l * Source::kBytes);
  }
}

void transposed_panel(WordKind kind, const MatrixRows& from, int64_t rows, int64_t elements,
                      const std::byte* next, uint32_t* out) {
  if (kind == WordKind::f32) {
    return from.type == DType::f32 ? transpose_words<Stored>(from, rows, elements, next, out)
                                   : transpose_words<Widened>(from, rows, elements, next, out);
  }
  transpose_words<Stored>(from, rows, elements / 2, next, out);
  if (elements % 2 == 0) return;
  uint32_t* last = out + elements / 2 * kPanel;
  for (int64_t r = 0; r < kPanel; ++r) {
    const std::byte* element = from.base + (r * from.stride + elements - 1) * 2;
    last[r] = r < rows ? Widened::one(element) >> 16 : 0;
  }
}

// A vector of one row; zero beyond the last element, and if there is no row.
template <class T>
HWY_INLINE V row_vector(const T* row, int64_t j, int64_t elements) {
  if (row == nullptr || j >= elements) return hn::Zero(kFloats);
  return j + kLanes <= elements ? load(row + j) : load(row + j, Part{elements - j});
}

template <class T>
void f32_panels(const MatrixRows& from, int64_t rows, int64_t padded, int64_t elements,
                int64_t panel, uint32_t* out) {
  for (int64_t r = 0; r < padded; ++r) {
    const T* row = r < rows ? reinterpret_cast<const T*>(from.base) + r * from.stride : nullptr;
    float* to = reinterpret_cast<float*>(out + r * kPanel);
    for (int64_t j = 0; j < round_up(elements, kPanel); j += kLanes)
      store(row_vector(row, j, elements), to + j / kPanel * panel + j % kPanel);
  }
}

// Words of columns j .. j + 16 of a pair of rows.
HWY_INLINE hn::Vec<Words> row_pair(const bf16* even, const bf16* odd, int64_t j, int64_t elements) {
  const auto low = hn::BitCast(Words(), row_vector(even, j, elements));
  const auto high = hn::BitCast(Words(), row_vector(odd, j, elements));
  return hn::Or(hn::ShiftRight<16>(low), high);
}

// Words of consecutive columns of a pair of rows, a vector at a time: put(j, words). Up to a
// multiple of `whole` columns; null rows and columns beyond the last are 0.
template <class F>
HWY_INLINE void for_row_pairs(const bf16* even, const bf16* odd, int64_t elements, int64_t whole,
                              F put) {
  int64_t j = 0;
#if HWY_TARGET == HWY_AVX3
  alignas(64) static constexpr auto kFirst = [] {
    std::array<uint16_t, 32> places{};
    for (size_t i = 0; i < 32; ++i) places[i] = static_cast<uint16_t>(i / 2 + i % 2 * 32);
    return places;
  }();
  const __m512i first = _mm512_load_si512(kFirst.data());
  const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
  for (; odd != nullptr && j + 2 * kLanes <= elements; j += 2 * kLanes) {
    const __m512i low = _mm512_loadu_si512(even + j), high = _mm512_loadu_si512(odd + j);
    put(j, hn::Vec<Words>{_mm512_permutex2var_epi16(low, first, high)});
    put(j + kLanes, hn::Vec<Words>{_mm512_permutex2var_epi16(low, second, high)});
  }
#endif
  for (; j < round_up(elements, whole); j += kLanes) put(j, row_pair(even, odd, j, elements));
}

void pair_panels(const MatrixRows& from, int64_t rows, int64_t padded, int64_t elements,
                 int64_t panel, uint32_t* out) {
  const bf16* base = reinterpret_cast<const bf16*>(from.base);
  for (int64_t r = 0; r < padded; r += 2, out += kPanel) {
    const bf16* even = r < rows ? base + r * from.stride : nullptr;
    const bf16* odd = r + 1 < rows ? base + (r + 1) * from.stride : nullptr;
    for_row_pairs(even, odd, elements, kPanel, [&](int64_t j, hn::Vec<Words> v) {
      hn::StoreU(v, Words(), out + j / kPanel * panel + j % kPanel);
    });
  }
}

void panels_of_rows(WordKind kind, const MatrixRows& from, int64_t rows, int64_t padded,
                    int64_t elements, int64_t panel, uint32_t* out) {
  if (is_paired(kind)) return pair_panels(from, rows, padded, elements, panel, out);
  from.type == DType::f32 ? f32_panels<float>(from, rows, padded, elements, panel, out)
                          : f32_panels<bf16>(from, rows, padded, elements, panel, out);
}

// Words of consecutive columns if a strip has fewer than a vector: stores each strip's part, `next`
// words apart.
template <int64_t N, class D>
HWY_INLINE void store_strips(D d, hn::Vec<D> v, int64_t strip, int64_t next, uint32_t* out) {
  if constexpr (N > 4) {
    if (N > strip) {
      const hn::Half<D> half;
      store_strips<N / 2>(half, hn::LowerHalf(half, v), strip, next, out);
      return store_strips<N / 2>(half, hn::UpperHalf(half, v), strip, next,
                                 out + N / 2 / strip * next);
    }
  }
  hn::StoreU(v, d, out);
}

// Stores one row in strips; vector(j) returns the words of a vector of columns from j on.
template <class F>
HWY_INLINE void row_to_strips(int64_t elements, int64_t strip, int64_t next, F vector,
                              uint32_t* out) {
  const Words d;
  if (strip < kLanes) {
    for (int64_t j = 0; j < round_up(elements, kLanes); j += kLanes)
      store_strips<kLanes>(d, vector(j), strip, next, out + j / strip * next);
    return;
  }
  for (int64_t j = 0; j < elements; j += strip, out += next) {
    int64_t c = 0;
    for (; c + kLanes <= strip; c += kLanes) hn::StoreU(vector(j + c), d, out + c);
    if constexpr (kLanes > 4) {
      const hn::Half<Words> half;
      if (c < strip) hn::StoreU(hn::LowerHalf(half, vector(j + c)), half, out + c);
    }
  }
}

template <class T>
void f32_strips(const MatrixRows& from, int64_t rows, int64_t elements, int64_t strip,
                uint32_t* out) {
  for (int64_t r = 0; r < rows; ++r, out += strip) {
    const T* row = reinterpret_cast<const T*>(from.base) + r * from.stride;
    const auto vector = [&](int64_t j) {
      return hn::BitCast(Words(), row_vector(row, j, elements));
    };
    row_to_strips(elements, strip, rows * strip, vector, out);
  }
}

void pair_strips(const MatrixRows& from, int64_t rows, int64_t elements, int64_t strip,
                 uint32_t* out) {
  const bf16* base = reinterpret_cast<const bf16*>(from.base);
  const int64_t next = words(WordKind::bf16_pair, rows) * strip;
  for (int64_t r = 0; r < rows; r += 2, out += strip) {
    const bf16* even = base + r * from.stride;
    const bf16* odd = r + 1 < rows ? even + from.stride : nullptr;
    for_row_pairs(even, odd, elements, 16, [&](int64_t j, hn::Vec<Words> v) {
      store_strips<kLanes>(Words(), v, strip, next, out + j / strip * next + j % strip);
    });
  }
}

void strips_of_rows(WordKind kind, const MatrixRows& from, int64_t rows, int64_t elements,
                    int64_t strip, uint32_t* out) {
  if (is_paired(kind)) return pair_strips(from, rows, elements, strip, out);
  from.type == DType::f32 ? f32_strips<float>(from, rows, elements, strip, out)
                          : f32_strips<bf16>(from, rows, elements, strip, out);
}

void words_of_rows(WordKind kind, const MatrixRows& from, int64_t rows, int64_t elements,
                   uint32_t* out) {
  const int64_t width = words(kind, elements), bytes = size_of(from.type);
  for (int64_t r = 0; r < rows; ++r, out += width) {
    const std::byte* row = from.base + r * from.stride * bytes;
    if (kind == WordKind::f32 && from.type == DType::bf16) {
      float* to = reinterpret_cast<float*>(out);
      for_vectors(0, elements, [&](int64_t i, auto n) {
        store(load(reinterpret_cast<const bf16*>(row) + i, n), to + i, n);
      });
    } else {
      out[width - 1] = 0;  // pairs with an odd last element
      std::memcpy(out, row, static_cast<size_t>(elements * bytes));
    }
  }
}

template <class Out, class Bias>
void store_rows(const StoreSums& s) {
  const Bias* bias = reinterpret_cast<const Bias*>(s.bias);
  const V factor = set(s.factor);
  for (int64_t r = 0; r < s.rows; ++r) {
    const float* sums = s.sums + r * s.sums_stride;
    Out* out = reinterpret_cast<Out*>(s.out) + r * s.out_stride;
    for_vectors(0, s.columns, [&](int64_t j, auto n) {
      V v = hn::Mul(factor, load(sums + j, n));
      if (bias != nullptr) v = hn::Add(v, load(bias + j, n));
      if (s.accumulate) v = hn::Add(v, load(out + j, n));
      store(v, out + j, n);
    });
  }
}

void store_any(const StoreSums& s) {
  const bool narrow_bias = s.bias_type == DType::bf16;
  if (s.out_type == DType::f32)
    return narrow_bias ? store_rows<float, bf16>(s) : store_rows<float, float>(s);
  return narrow_bias ? store_rows<bf16, bf16>(s) : store_rows<bf16, float>(s);
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(transposed_panel);
HWY_EXPORT(panels_of_rows);
HWY_EXPORT(strips_of_rows);
HWY_EXPORT(words_of_rows);
HWY_EXPORT(store_any);

void transpose_to_panel(WordKind kind, const MatrixRows& from, int64_t rows, int64_t elements,
                        const std::byte* next, uint32_t* out) {
  HWY_DYNAMIC_DISPATCH(transposed_panel)(kind, from, rows, elements, next, out);
}
void rows_to_panels(WordKind kind, const MatrixRows& from, int64_t rows, int64_t padded,
                    int64_t elements, int64_t panel, uint32_t* out) {
  HWY_DYNAMIC_DISPATCH(panels_of_rows)(kind, from, rows, padded, elements, panel, out);
}
void rows_to_strips(WordKind kind, const MatrixRows& from, int64_t rows, int64_t elements,
                    int64_t strip, uint32_t* out) {
  HWY_DYNAMIC_DISPATCH(strips_of_rows)(kind, from, rows, elements, strip, out);
}
void rows_to_words(WordKind kind, const MatrixRows& from, int64_t rows, int64_t elements,
                   uint32_t* out) {
  HWY_DYNAMIC_DISPATCH(words_of_rows)(kind, from, rows, elements, out);
}
void prefetch_rows(const MatrixRows& rows, int64_t count, int64_t elements) {
  const int64_t size = size_of(rows.type);
  for (int64_t r = 0; r < count; ++r) {
    const std::byte* row = rows.base + r * rows.stride * size;
    for (int64_t at = 0; at < elements * size; at += 64) __builtin_prefetch(row + at);
  }
}
void store_sums(const StoreSums& args) { HWY_DYNAMIC_DISPATCH(store_any)(args); }

}  // namespace megatron::kernels::cpu
#endif
