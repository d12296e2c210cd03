// The two random generators of NumPy that data sets are ordered with, bit for bit.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace megatron::data {

// numpy.random.RandomState(seed): MT19937 (Matsumoto and Nishimura, 1998), legacy seeding and
// bounded integers.
class RandomState {
 public:
  explicit RandomState(int64_t seed);  // throws Error outside [0, 2^32)

  // Uniform in [0, max]: masked rejection. Takes 64 bits a draw, high word first, when max is 2^32
  // or more.
  uint64_t interval(uint64_t max);

  // Fisher-Yates from the end: for i = n-1 ... 1 swap x[i] with x[interval(i)].
  template <class T>
  void shuffle(std::span<T> values) {
    for (size_t i = values.size(); i-- > 1;) std::swap(values[i], values[interval(i)]);
  }

 private:
  std::mt19937 engine_;
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
