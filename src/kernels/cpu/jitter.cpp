#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/jitter.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

// 1 + width * (2 u - 1) with u = (word >> 8) / 2^24.
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
  const NoiseRows& noise = args.rows;
  const int64_t length = noise.length_of(rows);
  const uint64_t key = noise.key();
  const int64_t* ids = noise.sample_ids.data<int64_t>();
  for_storage_type("jitter", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    T* out = args.out.data<T>();
    for_blocks(stream, rows, rows_per_block(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t of_all = noise.first_row + row;
        const PhiloxRow random(static_cast<uint32_t>(of_all % length),
                               static_cast<uint64_t>(ids[of_all / length]), key);
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

}  // namespace megatron::kernels::cpu
#endif
