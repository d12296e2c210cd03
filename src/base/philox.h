// Counter-based random numbers: Philox4x32-10 (Salmon et al., Parallel Random Numbers: As Easy as
// 1, 2, 3, SC 2011).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace megatron {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

inline PhiloxCounter philox(PhiloxCounter c, PhiloxKey k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(p0)};
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return c;
}

// 64-bit FNV-1a: the hash of tensor and stream names in RNG keys.
constexpr uint64_t hash_name(std::string_view text) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return h;
}

// A random stream: element i of stream (seed, name). Any element can be drawn independently, so the
// result does not depend on which rank draws it.
class RandomStream {
 public:
  RandomStream(uint64_t seed, std::string_view name) : RandomStream(seed, hash_name(name)) {}
  RandomStream(uint64_t seed, uint64_t stream);

  uint64_t bits(uint64_t index) const;   // 64 uniform bits
  double uniform(uint64_t index) const;  // [0, 1), 53 bits
  // Mean 0, standard deviation 1: elements 2i and 2i + 1 by Box-Muller in fp64.
  double normal(uint64_t index) const;

 private:
  PhiloxKey key_;
  uint32_t stream_low_, stream_high_;
};

}  // namespace megatron
