#include "slow/training/md5.h"

#include <fmt/core.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace megatron {
namespace {

using State = std::array<uint32_t, 4>;

// Constant i of the algorithm is floor(2^32 |sin(i + 1)|).
std::array<uint32_t, 64> sine_table() {
  std::array<uint32_t, 64> table{};
  for (int i = 0; i < 64; ++i)
    table[i] = static_cast<uint32_t>(std::floor(std::fabs(std::sin(i + 1.0)) * 4294967296.0));
  return table;
}

void add_block(State& state, const char* block, const std::array<uint32_t, 64>& sines) {
  constexpr int kShifts[4][4] = {{7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};
  std::array<uint32_t, 16> words;
  std::memcpy(words.data(), block, 64);
  auto [a, b, c, d] = state;
  for (int i = 0; i < 64; ++i) {
    uint32_t mixed;
    int word;
    switch (i / 16) {
      case 0:
        mixed = (b & c) | (~b & d);
        word = i;
        break;
      case 1:
        mixed = (d & b) | (~d & c);
        word = (5 * i + 1) % 16;
        break;
      case 2:
        mixed = b ^ c ^ d;
        word = (3 * i + 5) % 16;
        break;
      default:
        mixed = c ^ (b | ~d);
        word = (7 * i) % 16;
        break;
    }
    const uint32_t turned = std::rotl(a + mixed + sines[i] + words[word], kShifts[i / 16][i % 4]);
    a = d;
    d = c;
    c = b;
    b += turned;
  }
  state = {state[0] + a, state[1] + b, state[2] + c, state[3] + d};
}

}  // namespace

std::string md5_hex(std::string_view text) {
  const auto sines = sine_table();
  std::string padded(text);
  padded.push_back('\x80');
  while (padded.size() % 64 != 56) padded.push_back('\0');
  const uint64_t bits = 8 * uint64_t{text.size()};
  padded.append(reinterpret_cast<const char*>(&bits), sizeof bits);
  State state = {0x67452301u, 0xefcdab89u, 0x98badcfeu, 0x10325476u};
  for (size_t at = 0; at < padded.size(); at += 64) add_block(state, padded.data() + at, sines);
  std::string hex;
  for (const uint32_t word : state) hex += fmt::format("{:08x}", __builtin_bswap32(word));
  return hex;
}

}  // namespace megatron
