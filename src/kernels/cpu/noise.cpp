#include <algorithm>
#include <cmath>

#include "base/philox.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/noise.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

// 1 + width * (2 u - 1) of u = (word >> 8) / 2^24.
HWY_INLINE V factor_of(hn::Vec<Words> word, float width) {
  const hn::RebindToSigned<Words> integers;
  const V u = hn::Mul(hn::ConvertTo(kFloats, hn::BitCast(integers, hn::ShiftRight<8>(word))),
                      set(0x1p-24f));
  return hn::Add(set(1), hn::Mul(set(width), hn::Sub(hn::Add(u, u), set(1))));
}

template <class T>
void jitter_row(const T* x, T* out, int64_t width, const PhiloxRow& random, float amount) {
  for_pairs(0, width, [&](int64_t i, auto n) {
    const PhiloxWords words = words_of_twos<T, 1>(random, i)[0];
    const VectorPair v = load_pair(x + i, n);
    store_pair({hn::Mul(v.a, factor_of(words.first, amount)),
                hn::Mul(v.b, factor_of(words.second, amount))},
               out + i, n);
  });
}

void jitter_rows(const JitterArgs& args, Stream& stream) {
  const int64_t rows = args.x.size(0), width = args.x.size(1);
  const HostRowTokens tokens(args.rows.tokens, rows);
  const uint64_t key = args.rows.key();
  for_storage_type("jitter", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    T* out = args.out.data<T>();
    for_blocks(stream, rows, rows_per_block(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const PhiloxRow random(tokens.position(row), static_cast<uint64_t>(tokens.sample(row)),
                               key);
        jitter_row(x + row * width, out + row * width, width, random,
                   static_cast<float>(args.width));
      }
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(jitter_rows);

void jitter(const JitterArgs& args, Stream& stream) {
  if (args.x.elements() == 0) return;
  HWY_DYNAMIC_DISPATCH(jitter_rows)(args, stream);
}

namespace {

using Of = RandomLogitsArgs::Of;

// A number of mean 0 and variance 1.
double bell(PhiloxCounter counter, PhiloxKey key) {
  uint64_t sum = 0;
  for (const uint32_t word : philox(counter, key)) sum += word;
  return std::sqrt(3.0) * (static_cast<double>(sum) / 4294967296.0 - 2);
}

template <class C>
void fill_logits(const RandomLogitsArgs& args, Stream& stream) {
  const int64_t rows = args.out.size(0), experts = args.out.size(1);
  const HostRowTokens tokens(args.rows.tokens, rows);
  const uint64_t seed = args.rows.key();
  const PhiloxKey key = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for_blocks(stream, rows, rows_per_block(32 * experts), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const auto sample = static_cast<uint64_t>(args.of == Of::all ? 0 : tokens.sample(row));
      const uint32_t position = args.of == Of::token ? tokens.position(row) : 0;
      for (int64_t e = 0; e < experts; ++e) {
        const int64_t i = row * experts + e;
        const double x = args.x.defined() ? static_cast<double>(args.x.data<C>()[i]) : 0;
        const double g = bell({static_cast<uint32_t>(e), position, static_cast<uint32_t>(sample),
                               static_cast<uint32_t>(sample >> 32)},
                              key);
        args.out.data<C>()[i] = static_cast<C>(x + args.scale * g);
      }
    }
  });
}

}  // namespace

void random_logits(const RandomLogitsArgs& args, Stream& stream) {
  args.out.dtype() == DType::f64 ? fill_logits<double>(args, stream)
                                 : fill_logits<float>(args, stream);
}

}  // namespace megatron::kernels::cpu
#endif
