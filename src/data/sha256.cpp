#include "data/sha256.h"

#include <fmt/core.h>

#include <array>
#include <bit>
#include <cstdint>

namespace megatron::data {
namespace {

using State = std::array<uint32_t, 8>;

struct Constants {
  std::array<uint32_t, 64> round;  // fractional bits of the cube roots of the first 64 primes
  State initial;                   // fractional bits of the square roots of the first 8
};

// Integer root of n, modulo 2^32.
uint32_t root(int degree, __uint128_t n) {
  __uint128_t low = 0, high = __uint128_t{1} << 40;
  while (high - low > 1) {
    const auto middle = (low + high) / 2;
    (degree == 2 ? middle * middle : middle * middle * middle) <= n ? low = middle : high = middle;
  }
  return static_cast<uint32_t>(low);
}

Constants make_constants() {
  Constants constants{};
  size_t count = 0;
  for (uint32_t p = 2; count < constants.round.size(); ++p) {
    bool prime = true;
    for (uint32_t d = 2; d * d <= p; ++d) prime = prime && p % d != 0;
    if (!prime) continue;
    constants.round[count] = root(3, __uint128_t{p} << 96);
    if (count < constants.initial.size()) constants.initial[count] = root(2, __uint128_t{p} << 64);
    ++count;
  }
  return constants;
}

void add_block(std::string_view block, const Constants& constants, State& state) {
  std::array<uint32_t, 64> w{};
  for (size_t i = 0; i < 16; ++i) {
    for (size_t b = 0; b < 4; ++b) w[i] = w[i] << 8 | static_cast<unsigned char>(block[4 * i + b]);
  }
  for (size_t i = 16; i < w.size(); ++i) {
    const uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t i = 0; i < w.size(); ++i) {
    const uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                        ((e & f) ^ (~e & g)) + constants.round[i] + w[i];
    const uint32_t t2 =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const State add = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < add.size(); ++i) state[i] += add[i];
}

}  // namespace

std::string sha256_hex(std::string_view bytes) {
  constexpr size_t kBlock = 64;
  static const Constants constants = make_constants();
  State state = constants.initial;
  const uint64_t bits = 8 * uint64_t{bytes.size()};
  for (; bytes.size() >= kBlock; bytes.remove_prefix(kBlock))
    add_block(bytes.substr(0, kBlock), constants, state);
  std::string last(bytes);
  last.push_back('\x80');
  while (last.size() % kBlock != 56) last.push_back('\0');
  for (int shift = 56; shift >= 0; shift -= 8) last.push_back(static_cast<char>(bits >> shift));
  for (size_t at = 0; at < last.size(); at += kBlock)
    add_block(std::string_view(last).substr(at, kBlock), constants, state);
  std::string hex;
  for (const uint32_t word : state) hex += fmt::format("{:08x}", word);
  return hex;
}

}  // namespace megatron::data
