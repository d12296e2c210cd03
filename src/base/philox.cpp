#include "base/philox.h"

#include <cmath>
#include <numbers>

namespace megatron {

RandomStream::RandomStream(uint64_t seed, uint64_t stream)
    : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
      stream_low_(static_cast<uint32_t>(stream)),
      stream_high_(static_cast<uint32_t>(stream >> 32)) {}

uint64_t RandomStream::bits(uint64_t index) const {
  const uint64_t block = index / 2;
  const PhiloxCounter r = philox(
      {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), stream_low_, stream_high_},
      key_);
  return index % 2 == 0 ? (uint64_t{r[1]} << 32 | r[0]) : (uint64_t{r[3]} << 32 | r[2]);
}

double RandomStream::uniform(uint64_t index) const {
  return static_cast<double>(bits(index) >> 11) * 0x1p-53;
}

double RandomStream::normal(uint64_t index) const {
  const uint64_t pair = index / 2;
  const PhiloxCounter r = philox(
      {static_cast<uint32_t>(pair), static_cast<uint32_t>(pair >> 32), stream_low_, stream_high_},
      key_);
  const auto uniform = [](uint32_t low, uint32_t high) {
    return static_cast<double>((uint64_t{high} << 32 | low) >> 11) * 0x1p-53;
  };
  const double radius = std::sqrt(-2 * std::log(1 - uniform(r[0], r[1])));
  const double angle = 2 * std::numbers::pi * uniform(r[2], r[3]);
  return radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

}  // namespace megatron
