// Helpers of this room's tests.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "data/indexed_dataset.h"
#include "text.h"

namespace megatron::data {

using testing::error_of;

inline std::string golden(const std::string& path) {
  return std::string(MEGATRON_GOLDEN) + "/" + path;
}

inline std::shared_ptr<const TokenSource> open_golden(const std::string& prefix) {
  return std::make_shared<const IndexedDataset>(golden("blend/data/" + prefix));
}

// Copies both token files.
inline void copy_set(const std::string& from, const std::string& to) {
  for (const char* suffix : {".bin", ".idx"})
    std::filesystem::copy_file(golden(from) + suffix, to + suffix,
                               std::filesystem::copy_options::overwrite_existing);
}

// A temporary directory, in memory if possible, so that flushing is free.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    const bool memory = access("/dev/shm", W_OK) == 0;
    const auto root =
        memory ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path();
    std::string text = (root / "megatron_data_XXXXXX").string();
    if (mkdtemp(text.data()) == nullptr) throw Error("no temporary directory");
    path_ = text;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  std::string operator/(std::string_view file) const { return path_ + "/" + std::string(file); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::vector<int64_t> integers(const Json& json) {
  std::vector<int64_t> values;
  for (const Json& value : json.as_array()) values.push_back(value.as_integer());
  return values;
}

inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// SHA-256 (FIPS 180-4), to compare with the vectors' hashes.
inline std::string sha256_hex(std::string_view text) {
  static const auto roots = [] {
    // Fractional bits of the cube roots of the first 64 primes, and of the square roots of the
    // first 8.
    std::pair<std::array<uint32_t, 64>, std::array<uint32_t, 8>> tables{};
    const auto root = [](int degree, __uint128_t n) {
      unsigned __int128 low = 0, high = __uint128_t{1} << 40;
      while (high - low > 1) {
        const auto middle = (low + high) / 2;
        (degree == 2 ? middle * middle : middle * middle * middle) <= n ? low = middle
                                                                        : high = middle;
      }
      return static_cast<uint32_t>(low);
    };
    int count = 0;
    for (unsigned p = 2; count < 64; ++p) {
      bool prime = true;
      for (unsigned d = 2; d * d <= p; ++d) prime = prime && p % d != 0;
      if (!prime) continue;
      tables.first[count] = root(3, __uint128_t{p} << 96);
      if (count < 8) tables.second[count] = root(2, __uint128_t{p} << 64);
      ++count;
    }
    return tables;
  }();
  std::string padded(text);
  padded.push_back('\x80');
  while (padded.size() % 64 != 56) padded.push_back('\0');
  for (int shift = 56; shift >= 0; shift -= 8)
    padded.push_back(static_cast<char>(8 * uint64_t{text.size()} >> shift));
  auto state = roots.second;
  for (size_t at = 0; at < padded.size(); at += 64) {
    std::array<uint32_t, 64> w{};
    for (int i = 0; i < 64; ++i) {
      if (i < 16) {
        for (int b = 0; b < 4; ++b)
          w[i] = w[i] << 8 | static_cast<unsigned char>(padded[at + 4 * i + b]);
        continue;
      }
      const uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + w[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) +
             (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (int i = 0; i < 64; ++i) {
      const uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                          ((e & f) ^ (~e & g)) + roots.first[i] + w[i];
      const uint32_t t2 =
          (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const std::array<uint32_t, 8> add = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; ++i) state[i] += add[i];
  }
  std::string hex;
  for (const uint32_t word : state) hex += fmt::format("{:08x}", word);
  return hex;
}

}  // namespace megatron::data
