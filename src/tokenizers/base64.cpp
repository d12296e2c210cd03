#include "tokenizers/base64.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace megatron::tokenizers {
namespace {

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr std::array<int8_t, 256> make_values() {
  std::array<int8_t, 256> values{};
  values.fill(-1);
  for (size_t i = 0; i < kAlphabet.size(); ++i)
    values[static_cast<unsigned char>(kAlphabet[i])] = static_cast<int8_t>(i);
  return values;
}
constexpr std::array<int8_t, 256> kValues = make_values();  // by character; -1: invalid

}  // namespace

bool append_base64(std::string_view text, std::string& bytes) {
  if (text.size() % 4 != 0) return false;
  const size_t letters = text.find_last_not_of('=') + 1;
  if (text.size() - letters > 2) return false;
  uint32_t bits = 0;
  unsigned count = 0;
  for (const char c : text.substr(0, letters)) {
    const int value = kValues[static_cast<unsigned char>(c)];
    if (value < 0) return false;
    bits = bits << 6 | static_cast<uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(static_cast<unsigned char>(bits >> count & 0xff));
  }
  return true;
}

std::string to_base64(std::string_view bytes) {
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t left = std::min<size_t>(bytes.size() - i, 3);
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k)
      bits = bits << 8 | (k < left ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) text += k <= left ? kAlphabet[bits >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

}  // namespace megatron::tokenizers
