#include <algorithm>
#include <array>
#include <type_traits>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/draw_terms.h"
#include "kernels/table.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/draw.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

// Each lane computes a pair of draws.
using Doubles = hn::ScalableTag<double>;
using Longs = hn::ScalableTag<uint64_t>;
using SignedLongs = hn::ScalableTag<int64_t>;
using D = hn::Vec<Doubles>;
using L = hn::Vec<Longs>;

constexpr int64_t kPairs = HWY_LANES(double);
constexpr size_t kTogether = 4;  // vectors whose rounds are interleaved
constexpr int64_t kDrawsAtOnce = 2 * kPairs * static_cast<int64_t>(kTogether);
constexpr int64_t kBuffered = 16 * kDrawsAtOnce;  // draws; fits the L1 cache

HWY_INLINE L product(L a, uint32_t b) {
  return hn::MulEven(hn::BitCast(Words(), a), hn::Set(Words(), b));
}

// A pair's two uniform numbers in [0, 1).
struct Uniforms {
  D first, second;
};

HWY_INLINE D uniform(L low, L high) {
  const L word = hn::Or(hn::ShiftLeft<32>(high), hn::And(low, hn::Set(Longs(), 0xffffffffu)));
  const auto bits = hn::BitCast(SignedLongs(), hn::ShiftRight<11>(word));
  return hn::Mul(hn::ConvertTo(Doubles(), bits), hn::Set(Doubles(), 0x1p-53));
}

// Uniform numbers of consecutive pairs, starting at `pair`. Each lane holds a counter word in its
// lower half; the upper half is ignored until the end.
HWY_INLINE std::array<Uniforms, kTogether> uniforms(const DrawArgs& args, uint64_t pair) {
  L c[4][kTogether];
  for (size_t k = 0; k < kTogether; ++k) {
    const L number = hn::Iota(Longs(), pair + k * static_cast<uint64_t>(kPairs));
    c[0][k] = number;
    c[1][k] = hn::ShiftRight<32>(number);
    c[2][k] = hn::Set(Longs(), args.stream & 0xffffffffu);
    c[3][k] = hn::Set(Longs(), args.stream >> 32);
  }
  auto k0 = static_cast<uint32_t>(args.seed), k1 = static_cast<uint32_t>(args.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (size_t k = 0; k < kTogether; ++k) {
      const L p0 = product(c[0][k], 0xD2511F53u), p1 = product(c[2][k], 0xCD9E8D57u);
      c[0][k] = hn::Xor(hn::Xor(hn::ShiftRight<32>(p1), c[1][k]), hn::Set(Longs(), uint64_t{k0}));
      c[2][k] = hn::Xor(hn::Xor(hn::ShiftRight<32>(p0), c[3][k]), hn::Set(Longs(), uint64_t{k1}));
      c[1][k] = p1;
      c[3][k] = p0;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  std::array<Uniforms, kTogether> drawn;
  for (size_t k = 0; k < kTogether; ++k)
    drawn[k] = {uniform(c[0][k], c[1][k]), uniform(c[2][k], c[3][k])};
  return drawn;
}

// Polynomial in x with these coefficients, highest power first. No fma, so that the bits are the
// same everywhere.
template <size_t N>
HWY_INLINE D horner(const std::array<double, N>& terms, D x) {
  D sum = hn::Set(Doubles(), terms[0]);
  for (size_t i = 1; i < N; ++i) sum = hn::Add(hn::Mul(sum, x), hn::Set(Doubles(), terms[i]));
  return sum;
}

HWY_INLINE D log_of(D x) {
  const SignedLongs longs;
  const D one = hn::Set(Doubles(), 1.0);
  const auto bits = hn::BitCast(longs, x);
  const auto exponent = hn::ShiftRight<52>(hn::Sub(bits, hn::Set(longs, kRootHalfBits)));
  const D m = hn::BitCast(Doubles(), hn::Sub(bits, hn::ShiftLeft<52>(exponent)));
  const D e = hn::ConvertTo(Doubles(), exponent);
  const D s = hn::Div(hn::Sub(m, one), hn::Add(m, one));
  const D t = hn::Add(s, s), z = hn::Mul(s, s);
  const D rest = hn::Add(hn::Mul(hn::Mul(t, z), horner(kLogTerms, z)),
                         hn::Mul(e, hn::Set(Doubles(), kLn2Low)));
  return hn::Add(hn::Mul(e, hn::Set(Doubles(), kLn2High)), hn::Add(t, rest));
}

// Cosine and sine of 2 pi v.
HWY_INLINE void turn(D v, D& cosine, D& sine) {
  const Doubles d;
  const D q = hn::Floor(hn::Add(hn::Mul(v, hn::Set(d, 4.0)), hn::Set(d, 0.5)));
  const D r = hn::Sub(v, hn::Mul(q, hn::Set(d, 0.25)));
  const D a = hn::Mul(r, hn::Set(d, kTwoPi)), y = hn::Mul(a, a);
  const D sin_a = hn::Add(a, hn::Mul(a, hn::Mul(y, horner(kSinTerms, y))));
  const D cos_a = hn::Add(hn::Sub(hn::Set(d, 1.0), hn::Mul(y, hn::Set(d, 0.5))),
                          hn::Mul(y, hn::Mul(y, horner(kCosTerms, y))));
  const auto one = hn::Eq(q, hn::Set(d, 1.0)), two = hn::Eq(q, hn::Set(d, 2.0)),
             three = hn::Eq(q, hn::Set(d, 3.0)), odd = hn::Or(one, three);
  const D c = hn::IfThenElse(odd, sin_a, cos_a), s = hn::IfThenElse(odd, cos_a, sin_a);
  cosine = hn::IfThenElse(hn::Or(one, two), hn::Neg(c), c);
  sine = hn::IfThenElse(hn::Or(two, three), hn::Neg(s), s);
}

HWY_INLINE Uniforms values(const DrawArgs& args, const Uniforms& u) {
  const Doubles d;
  const D one = hn::Set(d, 1.0), scale = hn::Set(d, args.scale);
  if (args.kind == DrawArgs::Kind::uniform) {
    const auto spread = [&](D x) { return hn::Mul(scale, hn::Sub(hn::Add(x, x), one)); };
    return {spread(u.first), spread(u.second)};
  }
  const D radius = hn::Sqrt(hn::Mul(hn::Set(d, -2.0), log_of(hn::Sub(one, u.first))));
  D cosine, sine;
  turn(u.second, cosine, sine);
  return {hn::Mul(scale, hn::Mul(radius, cosine)), hn::Mul(scale, hn::Mul(radius, sine))};
}

// Computes at least `count` draws from `first`, which is even, on.
void draw_values(const DrawArgs& args, int64_t first, int64_t count, double* out) {
  for (int64_t i = 0; i < count; i += kDrawsAtOnce) {
    const auto drawn = uniforms(args, static_cast<uint64_t>(first + i) / 2);
    for (size_t k = 0; k < kTogether; ++k) {
      const Uniforms v = values(args, drawn[k]);
      hn::StoreInterleaved2(v.first, v.second, Doubles(),
                            out + i + 2 * kPairs * static_cast<int64_t>(k));
    }
  }
}

// Writes draws [begin, end) to out.
template <class T>
void draw_run(const DrawArgs& args, int64_t begin, int64_t end, T* out) {
  HWY_ALIGN double wide[kBuffered];
  HWY_ALIGN float narrow[kBuffered];
  for (int64_t at = begin - begin % 2; at < end; at += kBuffered) {
    const int64_t from = std::max(begin, at), to = std::min(end, at + kBuffered), n = to - from;
    draw_values(args, at, to - at, wide);
    const double* drawn = wide + (from - at);
    T* target = out + (from - begin);
    if constexpr (sizeof(T) == sizeof(double)) {
      std::copy(drawn, drawn + n, target);
      continue;
    }
    for (int64_t i = 0; i < n; ++i) narrow[i] = static_cast<float>(drawn[i]);
    if constexpr (std::is_same_v<T, f16>) {
      for (int64_t i = 0; i < n; ++i) target[i] = T(narrow[i]);
    } else if constexpr (sizeof(T) < sizeof(double)) {
      for_vectors(0, n,
                  [&](int64_t i, auto some) { store(load(narrow + i, some), target + i, some); });
    }
  }
}

template <class T>
void draw_rows(const DrawArgs& args, Stream& stream) {
  const int64_t rows = args.out.size(0), columns = args.out.size(1), stride = args.out.stride(0);
  if (args.out.elements() == 0) return;
  T* out = args.out.data<T>();
  if (columns >= kBlockElements) {
    const int64_t pieces = ceil_div(columns, kBlockElements);
    return for_each_block(stream, rows * pieces, [&](int64_t index, int) {
      const int64_t row = index / pieces, begin = index % pieces * kBlockElements;
      const int64_t first = args.first + row * args.step;
      draw_run(args, first + begin, first + std::min(columns, begin + kBlockElements),
               out + row * stride + begin);
    });
  }
  for_blocks(stream, rows, rows_per_block(columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = args.first + row * args.step;
      draw_run(args, first, first + columns, out + row * stride);
    }
  });
}

void draw_any(const DrawArgs& args, Stream& stream) {
  switch (args.out.dtype()) {
    case DType::f64: return draw_rows<double>(args, stream);
    case DType::f32: return draw_rows<float>(args, stream);
    case DType::bf16: return draw_rows<bf16>(args, stream);
    case DType::f16: return draw_rows<f16>(args, stream);
    default: refuse_type("draw", args.out.dtype());
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(draw_any);

void draw(const DrawArgs& args, Stream& stream) { HWY_DYNAMIC_DISPATCH(draw_any)(args, stream); }

}  // namespace megatron::kernels::cpu
#endif
