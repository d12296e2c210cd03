#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows_ahead.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/quantize_formulas.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/quantize.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

using Integers = hn::RebindToSigned<Floats>;

// A NaN in x does not count.
HWY_INLINE V larger(V x, V most) {
#if HWY_ARCH_X86
  return hn::Max(x, most);  // the second operand if one is NaN
#else
  return hn::IfThenElse(hn::Gt(x, most), x, most);
#endif
}

// Pairs of vectors of all types have the elements of even and of odd indices.
HWY_INLINE VectorPair load_two(const bf16* p, auto n) { return load_pair(p, n); }
HWY_INLINE VectorPair load_two(const float* p, auto n) { return load_pair_for<bf16>(p, n); }
HWY_INLINE void store_two(VectorPair v, float* p, auto n) { store_pair_for<bf16>(v, p, n); }

HWY_INLINE VectorPair times(VectorPair x, VectorPair f) {
  return {hn::Mul(x.a, f.a), hn::Mul(x.b, f.b)};
}
HWY_INLINE VectorPair larger(VectorPair x, VectorPair most) {
  return {larger(hn::Abs(x.a), most.a), larger(hn::Abs(x.b), most.b)};
}
template <class T>
HWY_INLINE float largest_of(const T* x, int64_t n) {
  const V zero = hn::Zero(kFloats);
  VectorPair most = {zero, zero}, other = most;
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    most = larger(load_pair(x + i), most);
    other = larger(load_pair(x + i + 2 * kLanes), other);
  }
  for_pairs(i, n, [&](int64_t at, auto part) { most = larger(load_pair(x + at, part), most); });
  most = larger(most, other);
  return hn::GetLane(hn::MaxOfLanes(kFloats, hn::Max(most.a, most.b)));
}
// Elements from n on, which are in memory, become zero.
HWY_INLINE VectorPair load_padded(const float* p, Whole n) { return load_two(p, n); }
HWY_INLINE VectorPair load_padded(const float* p, Part n) {
  return keep_two<bf16>(load_two(p, Whole{}), n);
}
// most[k] = max(|x[2k]|, |x[2k + 1]|) of n elements, and further zeros. load(i, Whole or Part).
template <class Load>
HWY_INLINE void maxima_of_twos(int64_t n, float* most, Load load) {
  for_pairs(0, n, [&](int64_t i, auto part) {
    const VectorPair v = load(i, part);
    store(larger(hn::Abs(v.a), larger(hn::Abs(v.b), hn::Zero(kFloats))), most + i / 2);
  });
}

// LowFormatBits for vectors.
class Rounder {
 public:
  explicit Rounder(LowFormat format) : f_(format), four_bits_(f_.sign == 8) {}

  // A NaN stays one.
  HWY_INLINE V rounded(V size) const {
    const V most = capped(size);
    const V rounder = hn::BitCast(kFloats, hn::Add(exponent(most), words(f_.to_rounder)));
    return hn::Sub(hn::Add(most, rounder), rounder);
  }
  HWY_INLINE V rounded_by_chance(V size, V chance) const {
    const V most = capped(size);
    const auto e = exponent(most);
    const V t = hn::Mul(most, hn::BitCast(kFloats, hn::Sub(words(f_.to_inverse), e)));
    const V whole = hn::Floor(t);
    const V up = hn::IfThenElseZero(hn::Lt(chance, hn::Sub(t, whole)), set(1));
    const V spacing = hn::BitCast(kFloats, hn::Add(e, words(f_.to_rounder - (23U << 23))));
    return hn::Mul(hn::Add(whole, up), spacing);
  }
  // The codes of rounded |x| with the signs of x; NaN where x is.
  HWY_INLINE hn::Vec<Words> codes(V size, V x) const {
    const auto small = hn::Lt(size, set(f_.smallest_normal));
    const V moved = hn::IfThenElse(small, hn::Add(size, set(f_.smallest_normal)), size);
    const auto shifted = hn::ShiftRightSame(hn::BitCast(Words(), moved), f_.mantissa_shift);
    const auto one =
        hn::IfThenElseZero(hn::RebindMask(Words(), small), words(1U << (23 - f_.mantissa_shift)));
    const auto code = hn::Sub(hn::Sub(shifted, words(f_.normal_bias)), one);
    const auto negative = hn::ShiftRight<31>(hn::BitCast(Words(), x));
    const auto sign = hn::ShiftLeftSame(negative, four_bits_ ? 3 : 7);
    return hn::IfThenElse(hn::RebindMask(Words(), hn::IsNaN(x)), words(f_.nan), hn::Or(code, sign));
  }

 private:
  static HWY_INLINE hn::Vec<Words> words(uint32_t value) { return hn::Set(Words(), value); }
  HWY_INLINE V capped(V size) const {
#if HWY_ARCH_X86
    return hn::Min(set(f_.largest), size);  // the second operand if one is NaN
#else
    return hn::IfThenElse(hn::Gt(size, set(f_.largest)), set(f_.largest), size);
#endif
  }
  HWY_INLINE hn::Vec<Words> exponent(V size) const {
    return hn::Max(hn::And(hn::BitCast(Words(), size), words(kFloatExponent)), words(f_.lowest));
  }

  LowFormatBits f_;
  bool four_bits_;
};

// is_bf16: v is exact in bf16, and need not be rounded.
HWY_INLINE void store_two(VectorPair v, Output<float> out, bool, auto n) { store_two(v, out.p, n); }
HWY_INLINE void store_two(VectorPair v, Output<bf16> out, bool is_bf16, auto n) {
  if (!std::is_same_v<decltype(n), Whole> || !is_bf16) return store_pair(v, out, n);
  const hn::Repartition<uint16_t, Words> halves;
  const auto even = hn::BitCast(halves, hn::ShiftRight<16>(hn::BitCast(Words(), v.a)));
  const auto bits = hn::OddEven(hn::BitCast(halves, v.b), even);
  auto* const p = reinterpret_cast<uint16_t*>(out.p);
  if (out.streamed) {
    hn::Stream(bits, halves, p);
  } else {
    hn::StoreU(bits, halves, p);
  }
}
HWY_INLINE void store_two(hn::Vec<Words> even, hn::Vec<Words> odd, uint8_t* out, Whole) {
  const auto two = hn::TruncateTo(Halves(), hn::Or(even, hn::ShiftLeft<8>(odd)));
  hn::StoreU(two, Halves(), reinterpret_cast<uint16_t*>(out));
}
HWY_INLINE void store_two(hn::Vec<Words> even, hn::Vec<Words> odd, uint8_t* out, Part part) {
  uint8_t buffer[2 * kLanes];
  store_two(even, odd, buffer, Whole{});
  std::memcpy(out, buffer, static_cast<size_t>(part.n));
}

// block_factors for vectors.
struct VectorFactors {
  V multiplier, divisor, factor;
  hn::Vec<Words> code;
};
HWY_INLINE V smaller(V x, float limit) {
  return hn::IfThenElse(hn::Lt(x, set(limit)), x, set(limit));
}
// scale: the bits of a power of two; 0: 2^-127.
HWY_INLINE VectorFactors factors_of_power(hn::Vec<Words> scale) {
  const auto power = [](hn::Vec<Words> bits) {
    return hn::BitCast(kFloats, hn::Max(bits, hn::Set(Words(), 1U << 22)));
  };
  const auto inverse = hn::Sub(hn::Set(Words(), 254U << 23), scale);
  return {power(inverse), set(1), power(scale), hn::ShiftRight<23>(scale)};
}
HWY_INLINE VectorFactors power_factors(float largest, V amax) {
  const auto is_finite = hn::Le(amax, set(kLargestFloat));
  const auto is_found = hn::And(is_finite, hn::Gt(amax, hn::Zero(kFloats)));
  const V size = hn::IfThenElse(is_found, amax, set(largest));
  const auto bits = hn::BitCast(Words(), smaller(hn::Div(set(largest), size), kLargestFloat));
  const auto multiplier = hn::And(bits, hn::Set(Words(), kFloatExponent));
  return factors_of_power(hn::Sub(hn::Set(Words(), 254U << 23), multiplier));
}
HWY_INLINE VectorFactors e8m0_factors(float largest, V amax, bool up) {
  const auto words = [](uint32_t value) { return hn::Set(Words(), value); };
  const auto most = std::bit_cast<uint32_t>(largest), fraction = most & kFloatFraction;
  const auto bits = hn::BitCast(Words(), amax), least = words((most >> 23) - 127);
  const auto exponent =
      hn::ShiftRight<23>(hn::Add(bits, words(up ? kFloatFraction - fraction : 0)));
  const auto code = hn::Sub(hn::Max(exponent, least), least);
  const auto is_infinite = hn::Eq(bits, words(kFloatExponent));
  return factors_of_power(hn::ShiftLeft<23>(hn::IfThenElse(is_infinite, words(254), code)));
}
HWY_INLINE VectorFactors fp4_factors(V amax, float scale, bool divides) {
  const Rounder e4m3(LowFormat::e4m3);
  const V size =
      divides ? hn::Div(hn::Div(amax, set(6)), set(scale)) : hn::Mul(amax, set(scale * (1.0F / 6)));
  const auto is_found = hn::Ne(amax, hn::Zero(kFloats));
  const V s = hn::IfThenElseZero(is_found, e4m3.rounded(smaller(size, 448)));
  const auto is_zero = hn::Eq(s, hn::Zero(kFloats));
  const V inverse = smaller(hn::Div(set(1), hn::Mul(s, set(1 / scale))), kLargestFloat);
  return {hn::IfThenZeroElse(is_zero, divides ? set(1) : inverse),
          hn::IfThenElse(is_zero, set(1), hn::Mul(s, set(scale))), s, e4m3.codes(s, s)};
}

// One row of blocks at a time, or a part of it: of kColumns if blocks are one row high, or else so
// few that the L2 cache keeps it between the maxima and the rounding, beside the next one.
template <class T>
class Quantization {
 public:
  static constexpr int64_t kColumns = 2048;

  explicit Quantization(const QuantizeArgs& args)
      : args_(args),
        rounder_(args.format),
        tokens_(args.noise.tokens, args.stochastic ? args.x.size(0) : 1),
        rows_(args.x.size(0)),
        columns_(args.x.size(1)),
        height_(std::max<int64_t>(64, args.out.rows)),
        scale_(args.scale.defined() ? *args.scale.data<float>() : 1),
        x_(args.x.data<T>()),
        width_(args.out.rows == 1 ? kColumns : 256),
        values_{nullptr, false},
        shift_(std::countr_zero(static_cast<uint64_t>(args.out.columns))) {
    // Rows of whole blocks are one row.
    if (args.out.rows == 1 && columns_ % args.out.columns == 0 && !args.stochastic) {
      columns_ *= rows_;
      rows_ = 1;
    }
    if (args.out.values.defined())
      values_ = output_of<T>(args.out.values, rows_ == 1 ? kColumns : columns_, {x_});
    for (int64_t lane = 0; lane < kLanes; ++lane)
      block_[static_cast<size_t>(lane)] = static_cast<int32_t>(2 * lane / args.out.columns);
  }

  void run(Stream& stream) {
    const auto quantize_row = [&](int64_t i, int64_t last, int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; j += width_)
        quantize({i, last, j, std::min(width_, end - j)});
    };
    if (rows_ == 1) {
      return for_blocks(stream, columns_, kBlockElements,
                        [&](int64_t begin, int64_t end) { quantize_row(0, 1, begin, end); });
    }
    for_blocks(stream, rows_, height_, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i += args_.out.rows)
        quantize_row(i, std::min(i + args_.out.rows, end), 0, columns_);
    });
  }

 private:
  struct Tile {
    int64_t begin, end, column, width;
  };
  // By block; if blocks are one column wide, in the order of pairs of vectors.
  struct Factors {
    using Array = std::array<float, kColumns + 2 * kLanes>;
    alignas(64) Array multiplier, divisor, factor;
  };

  // What to prefetch: the next tile or, if tiles are short, what is 6 KB ahead.
  const T* ahead(const Tile& tile) const {
    const T* const x = row(tile.begin, tile);
    if (args_.out.rows == 1) return x + 3 * kElementsAhead<T>;
    const bool last = tile.column + tile.width == columns_;
    return last ? row(tile.end, {}) : x + tile.width;
  }

  const T* row(int64_t r, const Tile& tile) const { return x_ + r * columns_ + tile.column; }

  void quantize(const Tile& tile) const {
    if (args_.rule == BlockScale::given) {
      const V scale = set(scale_);
      for (int64_t r = tile.begin; r < tile.end; ++r)
        round_row(
            tile, r, true, [&](VectorPair x, int64_t) { return times(x, {scale, scale}); },
            [](VectorPair q, int64_t) { return q; });
      return;
    }
    if (args_.out.columns == 1)
      return quantize_blocks(
          tile, [](const float* factors, int64_t j) { return load_pair(factors + j); });
    const auto block = hn::SetTableIndices(kFloats, block_.data());
    quantize_blocks(tile, [&](const float* factors, int64_t j) {
      const V v = hn::TableLookupLanes(hn::LoadU(kFloats, factors + (j >> shift_)), block);
      return VectorPair{v, v};
    });
  }

  // at(factors, column): those of a pair of vectors.
  template <class At>
  HWY_INLINE void quantize_blocks(const Tile& tile, At at) const {
    Factors factors;
    const bool is_bf16 = find_factors(tile, factors);
    const auto scaled = [&](VectorPair x, int64_t j) {
      x = times(x, at(factors.multiplier.data(), j));
      if (!divides()) return x;
      const VectorPair by = at(factors.divisor.data(), j);
      return VectorPair{hn::Div(x.a, by.a), hn::Div(x.b, by.b)};
    };
    const auto value = [&](VectorPair q, int64_t j) {
      return times(q, at(factors.factor.data(), j));
    };
    for (int64_t r = tile.begin; r < tile.end; ++r) round_row(tile, r, is_bf16, scaled, value);
  }

  // Maxima of |x| by column.
  void column_maxima(const Tile& tile, float* most) const {
    for_pairs(0, tile.width, [&](int64_t j, auto n) {
      VectorPair v = {hn::Zero(kFloats), hn::Zero(kFloats)};
      for (int64_t r = tile.begin; r < tile.end; ++r) v = larger(load_two(row(r, tile) + j, n), v);
      store_two(v, most + j, Whole{});
    });
  }

  // By block.
  void block_maxima(const Tile& tile, float* most) const {
    const T* const x = row(tile.begin, tile);
    const int64_t columns = args_.out.columns;
    int64_t n = tile.width;
    if (args_.out.rows > 1 || columns == 1) {
      column_maxima(tile, most);
    } else if (columns >= 4 * kLanes) {
      for (int64_t j = 0; j < n; j += columns)
        most[j / columns] = largest_of(x + j, std::min(columns, n - j));
      return;
    } else {
      maxima_of_twos(n, most, [&](int64_t j, auto part) { return load_two(x + j, part); });
    }
    for (int64_t level = args_.out.rows > 1 ? 1 : 2; level < columns; level *= 2) {
      n = ceil_div(tile.width, level);
      maxima_of_twos(n, most, [&](int64_t j, auto part) { return load_padded(most + j, part); });
    }
  }

  // Returns true if all values are exact in bf16: the smallest numbers of formats are 2^-16 or
  // more, those of bf16 2^-133.
  bool find_factors(const Tile& tile, Factors& factors) const {
    const QuantizedBlocks& to = args_.out;
    alignas(64) typename Factors::Array found;
    const int64_t first =
        tile.begin / to.rows * ceil_div(columns_, to.columns) + tile.column / to.columns;
    const int64_t count = ceil_div(tile.width, to.columns);
    if (args_.maxima.defined())
      std::copy_n(args_.maxima.data<float>() + first, count, found.data());
    else block_maxima(tile, found.data());
    const bool f32_scales = to.scales.defined() && to.scales.dtype() == DType::f32;
    float* scales = f32_scales ? to.scales.data<float>() + first : nullptr;
    uint8_t* codes =
        to.scales.defined() && !f32_scales ? to.scales.data<uint8_t>() + first : nullptr;
    V least = set(1);
    for_pairs(0, count, [&](int64_t k, auto n) {
      const VectorPair amax = load_padded(found.data() + k, n);
      const VectorFactors a = factors_of(amax.a), b = factors_of(amax.b);
      const auto keep = [&](V of_a, V of_b, typename Factors::Array& factor) {
        if (to.columns == 1) store_pair({of_a, of_b}, factor.data() + k);
        else store_two({of_a, of_b}, factor.data() + k, Whole{});
      };
      keep(a.multiplier, b.multiplier, factors.multiplier);
      keep(a.factor, b.factor, factors.factor);
      if (divides()) keep(a.divisor, b.divisor, factors.divisor);
      if (scales != nullptr) store_two({a.factor, b.factor}, scales + k, n);
      if (codes != nullptr) store_two(a.code, b.code, codes + k, n);
      for (const auto& [size, factor] : {std::pair{amax.a, a.factor}, std::pair{amax.b, b.factor}})
        least = hn::Min(least, hn::IfThenElse(hn::Eq(size, hn::Zero(kFloats)), least, factor));
    });
    return is_fp4() || hn::GetLane(hn::MinOfLanes(kFloats, least)) > 0x1p-100F;
  }

  HWY_INLINE VectorFactors factors_of(V amax) const {
    if (is_fp4()) return fp4_factors(amax, scale_, divides());
    const float largest = facts_of(args_.format).largest;
    if (args_.rule == BlockScale::power_of_two) return power_factors(largest, amax);
    return e8m0_factors(largest, amax, args_.rule == BlockScale::e8m0);
  }
  bool is_fp4() const { return args_.rule == BlockScale::nvfp4 || divides(); }
  bool divides() const { return args_.rule == BlockScale::nvfp4_quotient; }

  // scaled(x, column): what is rounded. value(q, column): of its result.
  template <class Scaled, class Value>
  HWY_INLINE void round_row(const Tile& tile, int64_t r, bool is_bf16, Scaled scaled,
                            Value value) const {
    alignas(64) Chances chances;
    if (args_.stochastic) find_chances(tile, r, chances.data());
    const int64_t at = r * columns_ + tile.column;
    uint8_t* codes = args_.out.codes.defined() ? args_.out.codes.data<uint8_t>() + at : nullptr;
    const Rounder rounder = rounder_;
    const T* const ahead = this->ahead(tile) + (r - tile.begin) * columns_;
    for_pairs(0, tile.width, [&](int64_t j, auto n) {
      for (int64_t k = 0; k < kPairBytes<T>; k += kCacheLine)
        __builtin_prefetch(reinterpret_cast<const std::byte*>(ahead + j) + k, 0, 2);
      const VectorPair x = scaled(load_two(x_ + at + j, n), j);
      const VectorPair size = {hn::Abs(x.a), hn::Abs(x.b)};
      VectorPair q;
      if (args_.stochastic) {
        const VectorPair u = load_two(chances.data() + j, Whole{});
        q = {rounder.rounded_by_chance(size.a, u.a), rounder.rounded_by_chance(size.b, u.b)};
      } else {
        q = {rounder.rounded(size.a), rounder.rounded(size.b)};
      }
      if (codes != nullptr)
        store_two(rounder.codes(q.a, x.a), rounder.codes(q.b, x.b), codes + j, n);
      if (values_.p == nullptr) return;
      q = {hn::CopySign(q.a, x.a), hn::CopySign(q.b, x.b)};
      store_two(value(q, j), values_ + (at + j), is_bf16, n);
    });
  }

  // The chance u of each element of a row. Vectors that go beyond the end of a run of channels
  // write values there that those of the next run replace.
  static constexpr int64_t kCounted = 2;
  using Chances = std::array<float, kColumns + 2 * kCounted * kLanes>;
  void find_chances(const Tile& tile, int64_t r, float* u) const {
    const PhiloxRow random(tokens_.position(r), static_cast<uint64_t>(tokens_.sample(r)),
                           args_.noise.key());
    const ChannelRuns& channels = args_.channels;
    for (int64_t j = 0; j < tile.width;) {
      int64_t end = tile.width;
      for (int i = 0; i < channels.count; ++i)
        if (const int64_t next = channels.runs[i].column - tile.column; next > j)
          end = std::min(end, next);
      const int64_t channel = channels.channel(tile.column + j);
      const auto part = [&](hn::Vec<Words> w) {
        return hn::Mul(hn::ConvertTo(kFloats, hn::BitCast(Integers(), hn::ShiftRight<8>(w))),
                       set(0x1p-24F));
      };
      for (int64_t k = 0; k < end - j; k += 2 * kCounted * kLanes) {
        const auto words = words_of_twos<float, kCounted>(random, channel + k);
        for (int64_t i = 0; i < kCounted; ++i) {
          const PhiloxWords& w = words[static_cast<size_t>(i)];
          store_pair({part(w.first), part(w.second)}, u + j + k + 2 * i * kLanes);
        }
      }
      j = end;
    }
  }

  const QuantizeArgs& args_;
  Rounder rounder_;
  HostRowTokens tokens_;
  int64_t rows_, columns_, height_;
  float scale_;
  const T* x_;
  int64_t width_;
  Output<T> values_;
  alignas(64) std::array<int32_t, kLanes> block_;  // of lanes of a pair of vectors
  int shift_;
};

void quantize_any(const QuantizeArgs& args, Stream& stream) {
  for_storage_type("quantize", args.x.dtype(),
                   [&](auto type) { Quantization<decltype(type)>(args).run(stream); });
}

void amax_any(const AmaxArgs& args, Stream& stream) {
  float* out = args.out.out.data<float>();
  if (args.out.beta == 0) *out = 0;
  for_storage_type("amax", args.x.dtype(), [&](auto type) {
    const auto* x = args.x.data<decltype(type)>();
    for_blocks(stream, args.x.elements(), kBlockElements,
               [&](int64_t begin, int64_t end) { raise(out, largest_of(x + begin, end - begin)); });
  });
}

template <class T>
void rotate_rows(const T* x, T* out, int64_t columns) {
  for_vectors(0, columns, [&](int64_t c, auto n) {
    V v[kHadamardRows];
    for (int64_t i = 0; i < kHadamardRows; ++i) {
      v[i] = load(x + i * columns + c, n);
      if ((kHadamardMinus >> i & 1) != 0) v[i] = hn::Neg(v[i]);
    }
    for (int64_t half = 1; half < kHadamardRows; half *= 2) {
      for (int64_t i = 0; i < kHadamardRows; ++i) {
        if ((i & half) != 0) continue;
        const V a = v[i], b = v[i + half];
        v[i] = hn::Add(a, b);
        v[i + half] = hn::Sub(a, b);
      }
    }
    for (int64_t i = 0; i < kHadamardRows; ++i)
      store(hn::Mul(v[i], set(0.25F)), out + i * columns + c, n);
  });
}

void hadamard_any(const HadamardArgs& args, Stream& stream) {
  const int64_t columns = args.x.size(1), width = kHadamardRows * columns;
  for_storage_type("hadamard", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    for_each_row_group(args.row_groups, args.x.size(0), [&](int64_t first, int64_t last) {
      const T* x = args.x.data<T>() + first * columns;
      T* out = args.out.data<T>() + first * columns;
      const int64_t whole = (last - first) / kHadamardRows;
      for_blocks(stream, whole, rows_per_block(width), [&](int64_t begin, int64_t end) {
        for (int64_t g = begin; g < end; ++g) rotate_rows(x + g * width, out + g * width, columns);
      });
      if (x != out) std::copy(x + whole * width, x + (last - first) * columns, out + whole * width);
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(quantize_any);
HWY_EXPORT(amax_any);
HWY_EXPORT(hadamard_any);

void amax(const AmaxArgs& args, Stream& stream) { HWY_DYNAMIC_DISPATCH(amax_any)(args, stream); }

void tensor_scale(const TensorScaleArgs& args, Stream&) {
  const float amax = *args.amax.data<float>();
  const int64_t count = args.history.defined() ? args.history.elements() : 0;
  float* history = count == 0 ? nullptr : args.history.data<float>();
  float most = amax;
  if (args.use_history)
    for (int64_t i = 0; i < count; ++i) most = std::fmax(most, history[i]);
  float* scale = args.scale.data<float>();
  *scale = scale_of_tensor(static_cast<float>(args.largest), power_of_two(-args.margin), most,
                           args.delayed, args.delayed ? *scale : 1);
  if (count == 0) return;
  std::shift_left(history, history + count, 1);
  history[count - 1] = amax;
}

void quantize(const QuantizeArgs& args, Stream& stream) {
  if (args.x.elements() == 0) return;
  for_each_row_group(
      args, [&](const QuantizeArgs& part) { HWY_DYNAMIC_DISPATCH(quantize_any)(part, stream); });
}

void hadamard(const HadamardArgs& args, Stream& stream) {
  if (args.x.elements() == 0) return;
  HWY_DYNAMIC_DISPATCH(hadamard_any)(args, stream);
}

}  // namespace megatron::kernels::cpu
#endif
