#include "data/random_state.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace megatron::data {
namespace {

uint32_t checked_seed(int64_t seed) {
  MG_CHECK(seed >= 0 && seed <= 0xffffffffll, "--seed is {}; it must lie in [0, 4294967295]", seed);
  return static_cast<uint32_t>(seed);
}

// NumPy's SeedSequence for one 32-bit word of entropy.
class SeedSequence {
 public:
  explicit SeedSequence(uint32_t entropy) : pool_{entropy, 0, 0, 0} {
    for (uint32_t& word : pool_) word = hash(word);
    for (size_t from = 0; from < pool_.size(); ++from) {
      for (size_t to = 0; to < pool_.size(); ++to) {
        if (from != to) pool_[to] = mix(pool_[to], hash(pool_[from]));
      }
    }
  }

  std::array<uint64_t, 4> state() const {
    uint32_t constant = 0x8b51f9ddu;
    std::array<uint64_t, 4> words{};
    for (size_t i = 0; i < 8; ++i) {
      uint32_t word = pool_[i % 4] ^ constant;
      constant *= 0x58f38dedu;
      word *= constant;
      word ^= word >> 16;
      words[i / 2] |= uint64_t{word} << (32 * (i % 2));
    }
    return words;
  }

 private:
  uint32_t hash(uint32_t value) {
    value ^= constant_;
    constant_ *= 0x931e8875u;
    value *= constant_;
    return value ^ (value >> 16);
  }
  static uint32_t mix(uint32_t x, uint32_t y) {
    const uint32_t value = 0xca01f9ddu * x - 0x4973f715u * y;
    return value ^ (value >> 16);
  }

  std::array<uint32_t, 4> pool_;
  uint32_t constant_ = 0x43b0d7e5u;
};

}  // namespace

RandomState::RandomState(int64_t seed) {
  uint32_t word = checked_seed(seed);
  for (uint32_t i = 0; i < kWords; ++i) {
    state_[i] = word;
    word = 1812433253u * (word ^ word >> 30) + i + 1;
  }
}

// Same as init_by_array of the authors' reference.
RandomState RandomState::python(uint32_t seed) {
  RandomState random(19650218);
  auto& s = random.state_;
  const auto mixed = [&](size_t i, uint32_t factor) {
    return s[i] ^ (s[i - 1] ^ s[i - 1] >> 30) * factor;
  };
  size_t i = 1;
  const auto advance = [&] {
    if (++i < kWords) return;
    s[0] = s[kWords - 1];
    i = 1;
  };
  for (size_t k = 0; k < kWords; ++k, advance()) s[i] = mixed(i, 1664525u) + seed;
  for (size_t k = 0; k + 1 < kWords; ++k, advance())
    s[i] = mixed(i, 1566083941u) - static_cast<uint32_t>(i);
  s[0] = 0x80000000u;
  return random;
}

// Loops without branches, whose distances (1, 397 and 227 words) allow vectorisation.
void RandomState::refill() {
  constexpr size_t kMiddle = 397;
  const auto twist = [](uint32_t high, uint32_t low) {
    const uint32_t word = (high & 0x80000000u) | (low & 0x7fffffffu);
    return word >> 1 ^ ((0u - (low & 1u)) & 0x9908b0dfu);
  };
  uint32_t* const s = state_.data();
  for (size_t i = 0; i < kWords - kMiddle; ++i) s[i] = s[i + kMiddle] ^ twist(s[i], s[i + 1]);
  for (size_t i = kWords - kMiddle; i < kWords - 1; ++i)
    s[i] = s[i + kMiddle - kWords] ^ twist(s[i], s[i + 1]);
  s[kWords - 1] = s[kMiddle - 1] ^ twist(s[kWords - 1], s[0]);
  for (size_t i = 0; i < kWords; ++i) {
    uint32_t word = s[i];
    word ^= word >> 11;
    word ^= word << 7 & 0x9d2c5680u;
    word ^= word << 15 & 0xefc60000u;
    words_[i] = word ^ word >> 18;
  }
  used_ = 0;
}

uint32_t RandomState::next() {
  if (used_ == kWords) refill();
  return words_[used_++];
}

double RandomState::uniform() {
  const uint32_t high = next() >> 5, low = next() >> 6;
  return (high * 67108864.0 + low) / 9007199254740992.0;
}

uint64_t RandomState::interval(uint64_t max) {
  if (max == 0) return 0;
  const uint64_t mask = ~uint64_t{0} >> std::countl_zero(max);
  for (;;) {
    uint64_t value = next();
    if (max > kLargestWord) value = value << 32 | next();
    if ((value &= mask) <= max) return value;
  }
}

int64_t RandomState::geometric(double p) {
  MG_ASSERT(p > 0 && p < 1.0 / 3);
  return static_cast<int64_t>(std::ceil(std::log1p(-uniform()) / std::log(1 - p)));
}

bool RandomState::bernoulli(double p) {
  const double value = uniform();
  return p <= 0.5 ? value > std::exp(std::log(1 - p)) : value <= std::exp(std::log(p));
}

size_t RandomState::draw(uint32_t last, Places& places) {
  if (last == 0) return 0;
  const uint32_t mask = ~0u >> std::countl_zero(last), low = mask >> 1;
  size_t count = 0;
  for (uint32_t i = last; count < places.size() && i > low;) {
    if (used_ == kWords) refill();
    // Draws no more than could all be accepted, so that the inner loop needs no check.
    const size_t words =
        std::min({kWords - used_, places.size() - count, static_cast<size_t>(i - low)});
    const uint32_t* const from = &words_[used_];
    for (size_t k = 0; k < words; ++k) {
      const uint32_t value = from[k] & mask;
      places[count] = value;
      const bool accepted = value <= i;
      count += accepted;
      i -= accepted;
    }
    used_ += words;
  }
  return count;
}

void RandomState::skip_shuffle(uint64_t count) {
  uint64_t i = count == 0 ? 0 : count - 1;
  for (; i > kLargestWord; --i) interval(i);
  Places places;
  while (const size_t drawn = draw(static_cast<uint32_t>(i), places)) i -= drawn;
}

WeightedChoice::WeightedChoice(std::span<const double> probabilities)
    : cumulative_(probabilities.size()) {
  MG_ASSERT(!probabilities.empty());
  std::partial_sum(probabilities.begin(), probabilities.end(), cumulative_.begin());
  const double sum = cumulative_.back();
  for (double& value : cumulative_) value /= sum;
}

size_t WeightedChoice::draw(RandomState& random) const {
  const auto found = std::ranges::upper_bound(cumulative_, random.uniform());
  return static_cast<size_t>(found - cumulative_.begin());
}

DefaultGenerator::DefaultGenerator(uint32_t seed) {
  const std::array<uint64_t, 4> words = SeedSequence(seed).state();
  const Wide initial = Wide{words[0]} << 64 | words[1];
  increment_ = (Wide{words[2]} << 64 | words[3]) << 1 | 1;
  next64();
  state_ += initial;
  next64();
}

uint64_t DefaultGenerator::next64() {
  constexpr Wide kMultiplier = Wide{0x2360ed051fc65da4ull} << 64 | 0x4385df649fccf645ull;
  state_ = state_ * kMultiplier + increment_;
  const uint64_t high = static_cast<uint64_t>(state_ >> 64), low = static_cast<uint64_t>(state_);
  return std::rotr(high ^ low, static_cast<int>(high >> 58));
}

uint32_t DefaultGenerator::next32() {
  if (has_kept_) {
    has_kept_ = false;
    return kept_;
  }
  const uint64_t bits = next64();
  kept_ = static_cast<uint32_t>(bits >> 32);
  has_kept_ = true;
  return static_cast<uint32_t>(bits);
}

int32_t DefaultGenerator::integer(int32_t low, int32_t high) {
  MG_ASSERT(low < high);
  const uint32_t count = static_cast<uint32_t>(high) - static_cast<uint32_t>(low);
  if (count == 1) return low;
  uint64_t product = uint64_t{next32()} * count;
  const uint32_t threshold = (0u - count) % count;
  while (static_cast<uint32_t>(product) < threshold) product = uint64_t{next32()} * count;
  return static_cast<int32_t>(static_cast<uint32_t>(low) + static_cast<uint32_t>(product >> 32));
}

}  // namespace megatron::data
