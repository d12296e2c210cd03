#include <numeric>

#include "base/error.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows_ahead.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/table.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rope.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

// Prefetch distance. Heads are parts of wider rows, which the hardware prefetcher cannot predict.
inline constexpr int64_t kBytesAhead = 6144;

struct Pair {
  V first, second;
};

// The rotation (first cos - second sin, second cos + first sin). No fma, so that both halves round
// alike.
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

// Addresses of one token's heads, and the distance of the heads to prefetch.
template <class T>
struct Heads {
  const T* x;
  Output<T> out;
  int64_t count, x_stride, out_stride, ahead;
};

template <class T>
void rotate_halves(const Heads<T>& heads, const float* cos, const float* sin, int64_t half,
                   V sign) {
  for_pairs(0, half, [&](int64_t i, auto n) {
    const VectorPair c = load_pair_for<T>(cos + i, n), s = load_pair_for<T>(sin + i, n);
    const VectorPair signed_s{hn::Mul(sign, s.a), hn::Mul(sign, s.b)};
    for (int64_t head = 0; head < heads.count; ++head) {
      const T* x = heads.x + head * heads.x_stride + i;
      const Output<T> out = heads.out + head * heads.out_stride + i;
      prefetch(x + heads.ahead, kPairBytes<T>);
      prefetch(x + heads.ahead + half, kPairBytes<T>);
      const VectorPair first = load_pair(x, n), second = load_pair(x + half, n);
      const Pair a = rotate({first.a, second.a}, c.a, signed_s.a);
      const Pair b = rotate({first.b, second.b}, c.b, signed_s.b);
      store_pair({a.first, b.first}, out, n);
      store_pair({a.second, b.second}, out + half, n);
    }
  });
}

template <class T>
void rotate_neighbours(const Heads<T>& heads, const float* cos, const float* sin, int64_t half,
                       V sign) {
  for_vectors(0, half, [&](int64_t i, auto n) {
    const V c = load(cos + i, n), s = hn::Mul(sign, load(sin + i, n));
    for (int64_t head = 0; head < heads.count; ++head) {
      const T* x = heads.x + head * heads.x_stride + 2 * i;
      prefetch(x + heads.ahead, kPairBytes<T>);
      const Pair pair = load_pairs(x, n);
      store_pairs(rotate(pair, c, s), (heads.out + head * heads.out_stride).p + 2 * i, n);
    }
  });
}

// Copies the channels that are not rotated.
template <class T>
void copy_rest(const Heads<T>& heads, int64_t rotated, int64_t dim) {
  if (rotated == dim || heads.out.p == heads.x) return;
  for (int64_t head = 0; head < heads.count; ++head) {
    std::memcpy(heads.out.p + head * heads.out_stride + rotated,
                heads.x + head * heads.x_stride + rotated,
                static_cast<size_t>(dim - rotated) * sizeof(T));
  }
}

void rotate_heads(const RopeArgs& args, Stream& stream) {
  const int64_t tokens = args.x.size(0), heads = args.x.size(1), dim = args.x.size(2);
  const int64_t positions = args.cos.size(0), half = args.cos.size(1);
  for_storage_type("rope", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    const Output<T> out = output_of<T>(
        args.out, std::gcd(half, std::gcd(args.out.stride(0), args.out.stride(1))), {x});
    const int32_t* places = args.positions.data<int32_t>();
    const float *cos = args.cos.data<float>(), *sin = args.sin.data<float>();
    const int64_t cos_stride = args.cos.stride(0), sin_stride = args.sin.stride(0);
    const int64_t x_stride = args.x.stride(0), out_stride = args.out.stride(0);
    const int64_t x_head = args.x.stride(1), out_head = args.out.stride(1);
    const bool interleaved = args.interleaved;
    const V sign = set(args.inverse ? -1.0f : 1.0f);
    const int64_t run = heads * x_head * static_cast<int64_t>(sizeof(T));
    const int64_t ahead = ceil_div(kBytesAhead, run) * x_stride;
    for_blocks(stream, tokens, rows_per_block(heads * dim), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int64_t position = places[t];
        MG_CHECK(position >= 0 && position < positions,
                 "rope: position {} of token {} is outside the table of {} positions", position, t,
                 positions);
        const float *c = cos + position * cos_stride, *s = sin + position * sin_stride;
        const Heads<T> of_token{
            x + t * x_stride, out + t * out_stride, heads, x_head, out_head, ahead};
        if (interleaved) {
          rotate_neighbours(of_token, c, s, half, sign);
        } else {
          rotate_halves(of_token, c, s, half, sign);
        }
        copy_rest(of_token, 2 * half, dim);
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
  HWY_DYNAMIC_DISPATCH(rotate_heads)(args, stream);
}

}  // namespace megatron::kernels::cpu
#endif
