#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
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

template <class T>
HWY_INLINE float largest_of(const T* x, int64_t n) {
  V most = hn::Zero(kFloats);
  int64_t i = 0;
  if (n >= 4 * kLanes) {
    V others[3] = {most, most, most};
    for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
      most = larger(hn::Abs(load(x + i)), most);
      for (int k = 0; k < 3; ++k)
        others[k] = larger(hn::Abs(load(x + i + (k + 1) * kLanes)), others[k]);
    }
    most = larger(larger(others[0], others[1]), larger(others[2], most));
  }
  for_vectors(i, n,
              [&](int64_t at, auto part) { most = larger(hn::Abs(load(x + at, part)), most); });
  return hn::GetLane(hn::MaxOfLanes(kFloats, most));
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

HWY_INLINE void store_bytes(hn::Vec<Words> codes, uint8_t* out, Whole) {
  const hn::Rebind<uint8_t, Floats> bytes;
  hn::StoreU(hn::DemoteTo(bytes, hn::BitCast(Integers(), codes)), bytes, out);
}
HWY_INLINE void store_bytes(hn::Vec<Words> codes, uint8_t* out, Part part) {
  uint8_t buffer[kLanes];
  store_bytes(codes, buffer, Whole{});
  std::memcpy(out, buffer, static_cast<size_t>(part.n));
}

// One tile of the matrix at a time, in which all blocks are whole but for those at the ends of the
// matrix.
template <class T>
class Quantization {
 public:
  static constexpr int64_t kColumns = 1024;

  explicit Quantization(const QuantizeArgs& args)
      : args_(args),
        rounder_(args.format),
        tokens_(args.noise.tokens, args.stochastic ? args.x.size(0) : 1),
        rows_(args.x.size(0)),
        columns_(args.x.size(1)),
        height_(std::max<int64_t>(64, args.out.rows)),
        scale_(args.scale.defined() ? *args.scale.data<float>() : 1),
        x_(args.x.data<T>()) {}

  void run(Stream& stream) {
    const int64_t across = ceil_div(columns_, kColumns);
    for_each_block(stream, ceil_div(rows_, height_) * across, [&](int64_t index, int) {
      const int64_t i = index / across * height_, j = index % across * kColumns;
      quantize({i, std::min(i + height_, rows_), j, std::min(kColumns, columns_ - j)});
    });
  }

 private:
  struct Tile {
    int64_t begin, end, column, width;
  };
  // By column of a tile.
  struct Factors {
    alignas(64) std::array<float, kColumns> multiplier, divisor, factor;
  };

  const T* row(int64_t r, const Tile& tile) const { return x_ + r * columns_ + tile.column; }

  void quantize(const Tile& tile) const {
    const QuantizedBlocks& to = args_.out;
    const Output<T> values = to.values.defined()
                                 ? output_of<T>(to.values, columns_, {args_.x.raw()})
                                 : Output<T>{nullptr, false};
    Factors factors;
    if (args_.rule == BlockScale::given) {
      const V scale = set(scale_);
      for (int64_t r = tile.begin; r < tile.end; ++r)
        round_row(
            tile, r, values, [&](V x, int64_t) { return hn::Mul(x, scale); },
            [](V q, int64_t) { return q; });
      return;
    }
    for (int64_t i = tile.begin; i < tile.end; i += to.rows) {
      const int64_t end = std::min(i + to.rows, tile.end);
      find_factors(tile, i, end, factors);
      const auto scaled = [&](V x, int64_t j) {
        x = hn::Mul(x, hn::Load(kFloats, factors.multiplier.data() + j));
        return divides() ? hn::Div(x, hn::Load(kFloats, factors.divisor.data() + j)) : x;
      };
      const auto value = [&](V q, int64_t j) {
        return hn::Mul(q, hn::Load(kFloats, factors.factor.data() + j));
      };
      for (int64_t r = i; r < end; ++r) round_row(tile, r, values, scaled, value);
    }
  }

  // Maxima of |x| over the rows [i, end), by column.
  void column_maxima(const Tile& tile, int64_t i, int64_t end, float* most) const {
    for_vectors(0, tile.width, [&](int64_t j, auto n) {
      V v = hn::Zero(kFloats);
      for (int64_t r = i; r < end; ++r) v = larger(hn::Abs(load(row(r, tile) + j, n)), v);
      store(v, most + j, n);
    });
  }

  // most: of the blocks of a row of blocks, one after another.
  void block_maxima(const Tile& tile, int64_t i, int64_t end, float* most) const {
    const QuantizedBlocks& to = args_.out;
    if (to.rows > 1) column_maxima(tile, i, end, most);
    if (to.columns == 1) {
      if (to.rows == 1) column_maxima(tile, i, end, most);
      return;
    }
    for (int64_t j = 0, k = 0; j < tile.width; j += to.columns, ++k) {
      const int64_t n = std::min(to.columns, tile.width - j);
      most[k] = to.rows > 1 ? largest_of(most + j, n) : largest_of(row(i, tile) + j, n);
    }
  }

  void find_factors(const Tile& tile, int64_t i, int64_t end, Factors& factors) const {
    const QuantizedBlocks& to = args_.out;
    alignas(64) std::array<float, kColumns> found;
    const int64_t first = i / to.rows * ceil_div(columns_, to.columns) + tile.column / to.columns;
    const float* most = found.data();
    if (args_.maxima.defined()) most = args_.maxima.data<float>() + first;
    else block_maxima(tile, i, end, found.data());
    const bool f32_scales = to.scales.defined() && to.scales.dtype() == DType::f32;
    float* scales = f32_scales ? to.scales.data<float>() + first : nullptr;
    uint8_t* codes =
        to.scales.defined() && !f32_scales ? to.scales.data<uint8_t>() + first : nullptr;
    const int64_t count = ceil_div(tile.width, to.columns);
    for (int64_t k = 0; k < count; ++k) {
      const BlockFactors f = block_factors(args_.rule, args_.format, most[k], scale_);
      const int64_t j = k * to.columns, n = std::min(to.columns, tile.width - j);
      std::fill_n(factors.multiplier.data() + j, n, f.multiplier);
      std::fill_n(factors.factor.data() + j, n, f.factor);
      if (divides()) std::fill_n(factors.divisor.data() + j, n, f.divisor);
      if (scales != nullptr) scales[k] = f.factor;
      if (codes != nullptr) codes[k] = static_cast<uint8_t>(f.code);
    }
  }

  bool divides() const { return args_.rule == BlockScale::nvfp4_quotient; }

  // scaled(x, column): what is rounded. value(q, column): of its result.
  template <class Scaled, class Value>
  HWY_INLINE void round_row(const Tile& tile, int64_t r, Output<T> values, Scaled scaled,
                            Value value) const {
    alignas(64) Chances chances;
    if (args_.stochastic) find_chances(tile, r, chances.data());
    const int64_t at = r * columns_ + tile.column;
    uint8_t* codes = args_.out.codes.defined() ? args_.out.codes.data<uint8_t>() + at : nullptr;
    for_vectors(0, tile.width, [&](int64_t j, auto n) {
      const V x = scaled(load(x_ + at + j, n), j), size = hn::Abs(x);
      const V q = args_.stochastic
                      ? rounder_.rounded_by_chance(size, hn::Load(kFloats, chances.data() + j))
                      : rounder_.rounded(size);
      if (codes != nullptr) store_bytes(rounder_.codes(q, x), codes + j, n);
      if (values.p != nullptr) store(value(hn::CopySign(q, x), j), values + (at + j), n);
    });
  }

  // The chance u of each element of a row. Vectors that go beyond the end of a run of channels
  // write values there that those of the next run replace.
  using Chances = std::array<float, kColumns + 2 * kLanes>;
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
      for (int64_t k = 0; k < end - j; k += 2 * kLanes) {
        const PhiloxWords words = words_of_twos<float, 1>(random, channel + k)[0];
        const auto part = [&](hn::Vec<Words> w) {
          return hn::Mul(hn::ConvertTo(kFloats, hn::BitCast(Integers(), hn::ShiftRight<8>(w))),
                         set(0x1p-24F));
        };
        hn::StoreU(part(words.first), kFloats, u + j + k);
        hn::StoreU(part(words.second), kFloats, u + j + k + kLanes);
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
