// Philox4x32-10 (base/philox.h) for dropout masks, many counters at a time. Included once per
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

// Words of 2 kLanes adjacent channels in one of two orders. Consecutive: `first` has those of the
// first kLanes channels. Alternating: `first` has those of the even channels, `second` those of the
// odd ones.
struct PhiloxWords {
  hn::Vec<Words> first, second;
};

// The words of (sample, position) under `key` (low word first), for the mask of kernels/dropout.h.
// Each 64-bit lane holds one counter. What all channels share is computed once: word 0 of a counter
// is the channel's group, so only half of the first three rounds depends on it.
class PhiloxRow {
 public:
  PhiloxRow(uint32_t position, uint64_t sample, uint64_t key) {
    auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < kRounds; ++round) {
      keys_[round] = {k0, k1};
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    const uint64_t p1 = kM1 * (sample & 0xffffffffu);
    const uint64_t c0 = (p1 >> 32) ^ position ^ keys_[0].k0;
    const uint64_t p0 = kM0 * c0;
    after_first_ = (sample >> 32) ^ keys_[0].k1;
    after_second_[0] = (p1 & 0xffffffffu) ^ keys_[1].k0;
    after_second_[1] = (p0 >> 32) ^ keys_[1].k1;
    after_third_ = (p0 & 0xffffffffu) ^ keys_[2].k1;
  }

  // Words of the channels 4 group .. 4 group + 2 kLanes N. Each round waits for the previous one,
  // so the rounds of N words take little longer than those of one.
  template <size_t N>
  HWY_INLINE std::array<PhiloxWords, N> consecutive(uint32_t group) const {
    static constexpr auto order = [] {
      std::array<uint64_t, kCounters> lanes{};
      for (size_t l = 0; l < kCounters; ++l) lanes[l] = (l & 1) * (kCounters / 2) + l / 2;
      return lanes;
    }();
    std::array<PhiloxWords, N> words = of_counters<N>(group, hn::LoadU(Longs(), order.data()));
    for (PhiloxWords& w : words) {
      w = {hn::InterleaveLower(Words(), w.first, w.second),
           hn::InterleaveUpper(Words(), w.first, w.second)};
    }
    return words;
  }
  template <size_t N>
  HWY_INLINE std::array<PhiloxWords, N> even_and_odd(uint32_t group) const {
    return of_counters<N>(group, hn::Iota(Longs(), 0));
  }

 private:
  static constexpr int kRounds = 10;
  static constexpr size_t kCounters = HWY_LANES(uint64_t);
  static constexpr uint64_t kM0 = 0xD2511F53u, kM1 = 0xCD9E8D57u;
  using Counters = hn::Vec<Longs>;
  struct Key {
    uint64_t k0, k1;
  };

  static HWY_INLINE Counters set(uint64_t value) { return hn::Set(Longs(), value); }
  // Products of the low halves of the lanes.
  static HWY_INLINE Counters product(Counters c, uint64_t factor) {
    return hn::MulEven(hn::BitCast(Words(), c), hn::BitCast(Words(), set(factor)));
  }
  // Low halves: high half of p ^ a ^ b. High halves are unused.
  static HWY_INLINE Counters mixed(Counters p, Counters a, Counters b) {
    const Counters high = hn::ShiftRight<32>(p);
#if HWY_TARGET == HWY_AVX3
    return Counters{_mm512_ternarylogic_epi64(high.raw, a.raw, b.raw, 0x96)};
#else
    return hn::Xor(hn::Xor(high, a), b);
#endif
  }

  // Words 0 and 2 of each counter, and words 1 and 3.
  template <size_t N>
  HWY_INLINE std::array<PhiloxWords, N> of_counters(uint32_t group, Counters lanes) const {
    Counters c0[N], c2[N], p0[N], p1[N];
    for (size_t n = 0; n < N; ++n) {
      p0[n] = product(hn::Add(lanes, set(group + n * kCounters)), kM0);
      c2[n] = hn::Xor(hn::ShiftRight<32>(p0[n]), set(after_first_));
    }
    for (size_t n = 0; n < N; ++n) {
      p1[n] = product(c2[n], kM1);
      c0[n] = hn::Xor(hn::ShiftRight<32>(p1[n]), set(after_second_[0]));
      c2[n] = hn::Xor(p0[n], set(after_second_[1]));
    }
    for (size_t n = 0; n < N; ++n) {
      const Counters c1 = p1[n];
      p0[n] = product(c0[n], kM0);
      p1[n] = product(c2[n], kM1);
      c0[n] = mixed(p1[n], c1, set(keys_[2].k0));
      c2[n] = hn::Xor(hn::ShiftRight<32>(p0[n]), set(after_third_));
    }
    for (int round = 3; round < kRounds; ++round) {
      for (size_t n = 0; n < N; ++n) {
        const Counters c1 = p1[n], c3 = p0[n];
        p0[n] = product(c0[n], kM0);
        p1[n] = product(c2[n], kM1);
        c0[n] = mixed(p1[n], c1, set(keys_[round].k0));
        c2[n] = mixed(p0[n], c3, set(keys_[round].k1));
      }
    }
    std::array<PhiloxWords, N> words;
    const auto above = [](Counters c) { return hn::BitCast(Words(), hn::ShiftLeft<32>(c)); };
    for (size_t n = 0; n < N; ++n) {
      words[n] = {hn::OddEven(above(c2[n]), hn::BitCast(Words(), c0[n])),
                  hn::OddEven(above(p0[n]), hn::BitCast(Words(), p1[n]))};
    }
    return words;
  }

  std::array<Key, kRounds> keys_;
  uint64_t after_first_, after_second_[2], after_third_;
};

// Words of the channels from `channel`, a multiple of 4, on, in the order of load_pair.
template <class T, size_t N>
HWY_INLINE std::array<PhiloxWords, N> words_of_twos(const PhiloxRow& random, int64_t channel) {
  const auto group = static_cast<uint32_t>(channel / 4);
  if constexpr (sizeof(T) == sizeof(bf16)) {
    return random.even_and_odd<N>(group);
  } else {
    return random.consecutive<N>(group);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif
