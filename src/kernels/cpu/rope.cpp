#include "kernels/cpu/rope.h"

#include <numeric>

#include "base/error.h"
#include "kernels/check.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rope.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

inline constexpr int64_t kAhead = 3;  // tokens

struct Pair {
  V first, second;
};

// The rotation (first cos - second sin, second cos + first sin); no fused products, so that both
// halves round alike.
HWY_INLINE Pair rotate(Pair p, V cos, V sin) {
  return {hn::Sub(hn::Mul(p.first, cos), hn::Mul(p.second, sin)),
          hn::Add(hn::Mul(p.second, cos), hn::Mul(p.first, sin))};
}

// Elements 2 i and 2 i + 1 of the pairs at p.
HWY_INLINE Pair load_pairs(const float* p) {
  Pair pair;
  hn::LoadInterleaved2(kFloats, p, pair.first, pair.second);
  return pair;
}
HWY_INLINE void store_pairs(Pair pair, float* p) {
  hn::StoreInterleaved2(pair.first, pair.second, kFloats, p);
}
HWY_INLINE Pair load_pairs(const bf16* p) {
  const auto bits = hn::LoadU(Words(), reinterpret_cast<const uint32_t*>(p));
  return {hn::BitCast(kFloats, hn::ShiftLeft<16>(bits)),
          hn::BitCast(kFloats, hn::And(bits, hn::Set(Words(), 0xffff0000u)))};
}
HWY_INLINE void store_pairs(Pair pair, bf16* p) {
  const auto first = hn::ShiftRight<16>(round_to_bf16(pair.first));
  const auto second = hn::And(round_to_bf16(pair.second), hn::Set(Words(), 0xffff0000u));
  hn::StoreU(hn::Or(first, second), Words(), reinterpret_cast<uint32_t*>(p));
}
template <class T>
HWY_INLINE Pair load_pairs(const T* p, Whole) {
  return load_pairs(p);
}
template <class T>
HWY_INLINE Pair load_pairs(const T* p, Part part) {
  T buffer[2 * kLanes] = {};
  std::memcpy(buffer, p, static_cast<size_t>(2 * part.n) * sizeof(T));
  return load_pairs(buffer);
}
template <class T>
HWY_INLINE void store_pairs(Pair pair, T* p, Whole) {
  store_pairs(pair, p);
}
template <class T>
HWY_INLINE void store_pairs(Pair pair, T* p, Part part) {
  T buffer[2 * kLanes];
  store_pairs(pair, buffer);
  std::memcpy(p, buffer, static_cast<size_t>(2 * part.n) * sizeof(T));
}

template <class T>
void rotate_head(const T* x, Output<T> out, const float* cos, const float* sin, int64_t half,
                 bool interleaved, V sign) {
  if (interleaved) {
    for_vectors(0, half, [&](int64_t i, auto n) {
      const Pair pair = load_pairs(x + 2 * i, n);
      store_pairs(rotate(pair, load(cos + i, n), hn::Mul(sign, load(sin + i, n))), out.p + 2 * i,
                  n);
    });
  } else {
    for_vectors(0, half, [&](int64_t i, auto n) {
      const Pair pair{load(x + i, n), load(x + half + i, n)};
      const Pair rotated = rotate(pair, load(cos + i, n), hn::Mul(sign, load(sin + i, n)));
      store(rotated.first, out + i, n);
      store(rotated.second, out + half + i, n);
    });
  }
}

// Heads are parts of wider rows, which the processor does not foresee.
template <class T>
HWY_INLINE void ask_for(const T* row, int64_t elements) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  for (int64_t i = 0; i < elements; i += kLine) __builtin_prefetch(row + i);
}

void rotate_heads(const RopeArgs& args, Stream& stream) {
  const int64_t tokens = args.x.size(0), heads = args.x.size(1), dim = args.x.size(2);
  const int64_t positions = args.cos.size(0), half = args.cos.size(1);
  for_storage_type("rope", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    const Output<T> out = output_of<T>(
        args.out, std::gcd(half, std::gcd(args.out.stride(0), args.out.stride(1))), {x});
    const V sign = set(args.inverse ? -1.0f : 1.0f);
    for_blocks(stream, tokens, rows_per_block(heads * dim), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int64_t position = args.positions.data<int32_t>()[t];
        MG_CHECK(position >= 0 && position < positions,
                 "rope: position {} of token {} is outside of the table of {} positions", position,
                 t, positions);
        const float* cos = args.cos.data<float>() + position * args.cos.stride(0);
        const float* sin = args.sin.data<float>() + position * args.sin.stride(0);
        for (int64_t head = 0; head < heads; ++head) {
          const T* from = x + t * args.x.stride(0) + head * args.x.stride(1);
          if (t + kAhead < end) ask_for(from + kAhead * args.x.stride(0), dim);
          const Output<T> to = out + t * args.out.stride(0) + head * args.out.stride(1);
          rotate_head(from, to, cos, sin, half, args.interleaved, sign);
          if (dim > 2 * half && to.p != from) {
            std::memcpy(to.p + 2 * half, from + 2 * half,
                        static_cast<size_t>(dim - 2 * half) * sizeof(T));
          }
        }
      }
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(rotate_heads);

void rope(const RopeArgs& args, Stream& stream) {
  check(args);
  HWY_DYNAMIC_DISPATCH(rotate_heads)(args, stream);
}

}  // namespace megatron::kernels::cpu
#endif
