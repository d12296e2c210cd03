// Philox4x32-10 (base/philox.h) for the dropout masks, many counters at a time; included once per
// instruction set.
#if defined(MEGATRON_KERNELS_CPU_PHILOX_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGATRON_KERNELS_CPU_PHILOX_INL_H
#undef MEGATRON_KERNELS_CPU_PHILOX_INL_H
#else
#define MEGATRON_KERNELS_CPU_PHILOX_INL_H
#endif

#include <array>

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

using Longs = hn::ScalableTag<uint64_t>;

// Words of 2 kLanes channels in a row: `first` those of the first kLanes channels.
struct PhiloxWords {
  hn::Vec<Words> first, second;
};

// Channels 4 group .. 4 group + 2 kLanes of (sample, position) under `key` (low word first); the
// mask of kernels/dropout.h. A 64-bit lane holds one counter, in an order that leaves the words in
// place after one interleave.
HWY_INLINE PhiloxWords philox_words(uint32_t group, uint32_t position, uint64_t sample,
                                    uint64_t key) {
  const Longs longs;
  const Words words;
  constexpr size_t kCounters = HWY_LANES(uint64_t);
  static constexpr auto order = [] {
    std::array<uint64_t, kCounters> lanes{};
    for (size_t l = 0; l < kCounters; ++l) lanes[l] = (l & 1) * (kCounters / 2) + l / 2;
    return lanes;
  }();
  auto c0 = hn::Add(hn::LoadU(longs, order.data()), hn::Set(longs, uint64_t{group}));
  auto c1 = hn::Set(longs, uint64_t{position});
  auto c2 = hn::Set(longs, sample & 0xffffffffu);
  auto c3 = hn::Set(longs, sample >> 32);
  const auto m0 = hn::BitCast(words, hn::Set(longs, uint64_t{0xD2511F53u}));
  const auto m1 = hn::BitCast(words, hn::Set(longs, uint64_t{0xCD9E8D57u}));
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const auto p0 = hn::MulEven(hn::BitCast(words, c0), m0);
    const auto p1 = hn::MulEven(hn::BitCast(words, c2), m1);
    c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p1), c1), hn::Set(longs, uint64_t{k0}));
    c1 = p1;
    c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p0), c3), hn::Set(longs, uint64_t{k1}));
    c3 = p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const auto low = hn::Set(longs, uint64_t{0xffffffffu});
  const auto w01 = hn::Or(hn::And(c0, low), hn::ShiftLeft<32>(c1));
  const auto w23 = hn::Or(hn::And(c2, low), hn::ShiftLeft<32>(c3));
  return {hn::BitCast(words, hn::InterleaveLower(longs, w01, w23)),
          hn::BitCast(words, hn::InterleaveUpper(longs, w01, w23))};
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif
