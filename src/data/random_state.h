// NumPy's random generators that determine the order of data sets, and Python's, bit for bit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace megatron::data {

// numpy.random.RandomState(seed): MT19937 (Matsumoto and Nishimura, 1998), legacy seeding and
// bounded integers.
class RandomState {
 public:
  explicit RandomState(int64_t seed);  // throws Error outside [0, 2^32)

  // Python's random.Random(seed): the same generator, seeded by an array of one word.
  static RandomState python(uint32_t seed);

  uint32_t next();   // 32 bits
  double uniform();  // in [0, 1) with 53 bits, as Python's random()

  // Uniform in [0, max]: masked rejection. Takes 64 bits per draw, high word first, if max is 2^32
  // or more.
  uint64_t interval(uint64_t max);

  // randint(low, high): uniform in [low, high); takes no word if only one value is possible.
  int64_t integer(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(interval(static_cast<uint64_t>(high - low - 1)));
  }
  // geometric(p): number of trials up to the first success, by inversion. p in (0, 1/3).
  int64_t geometric(double p);
  // binomial(1, p): true with probability p; takes one uniform(), also for 0 and 1.
  bool bernoulli(double p);

  // Fisher-Yates from the end: for i = n-1 ... 1 swap x[i] with x[interval(i)]. Positions are drawn
  // a few hundred ahead of their use and prefetched meanwhile.
  template <class T>
  void shuffle(std::span<T> values) {
    uint64_t i = values.empty() ? 0 : values.size() - 1;
    for (; i > kLargestWord; --i) std::swap(values[i], values[interval(i)]);
    Places ahead, now;
    const auto fetch = [&](uint64_t last) {
      const size_t count = draw(static_cast<uint32_t>(last), ahead);
      for (size_t k = 0; k < count; ++k) __builtin_prefetch(&values[ahead[k]], 1);
      return count;
    };
    for (size_t count = fetch(i); count > 0;) {
      std::swap(ahead, now);
      const size_t next = fetch(i - count);
      for (size_t k = 0; k < count; ++k) std::swap(values[i - k], values[now[k]]);
      i -= count;
      count = next;
    }
  }

  // Advances the generator to its state after shuffle() of `count` values.
  void skip_shuffle(uint64_t count);

 private:
  static constexpr uint64_t kLargestWord = 0xffffffff;
  static constexpr size_t kWords = 624;
  using Places = std::array<uint32_t, 256>;

  void refill();
  // Draws interval(last), interval(last - 1), ...: as many as fit and share one mask; none for last
  // 0.
  size_t draw(uint32_t last, Places& places);

  std::array<uint32_t, kWords> state_, words_;  // words_: the outputs of this state
  size_t used_ = kWords;
};

// RandomState.choice(n, p=weights): an index drawn with the given probabilities, from one
// uniform().
class WeightedChoice {
 public:
  explicit WeightedChoice(std::span<const double> probabilities);  // at least one

  size_t draw(RandomState& random) const;

 private:
  std::vector<double> cumulative_;
};

// numpy.random.default_rng(seed): PCG64 (O'Neill, 2014; 128-bit state, XSL-RR output) seeded
// through SeedSequence.
class DefaultGenerator {
 public:
  explicit DefaultGenerator(uint32_t seed);

  // integers(low, high, dtype=int32): uniform in [low, high), by multiplication and rejection
  // (Lemire, 2019) on halves of the 64-bit outputs, low half first.
  int32_t integer(int32_t low, int32_t high);

 private:
  __extension__ using Wide = unsigned __int128;

  uint64_t next64();
  uint32_t next32();

  Wide state_ = 0, increment_ = 0;
  uint32_t kept_ = 0;
  bool has_kept_ = false;
};

}  // namespace megatron::data
