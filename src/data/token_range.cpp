#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "data/indexed_dataset.h"

namespace megatron::data {
namespace {

// Blocks of a fixed size with a separate minimum and maximum per lane can be vectorised.
template <class T>
TokenRange scan(std::span<const std::byte> bytes) {
  constexpr size_t kLanes = 128;
  std::array<T, kLanes> low, high, block;
  low.fill(std::numeric_limits<T>::max());
  high.fill(std::numeric_limits<T>::min());
  const auto take = [&](size_t lanes) {
    for (size_t i = 0; i < lanes; ++i) {
      low[i] = std::min(low[i], block[i]);
      high[i] = std::max(high[i], block[i]);
    }
  };
  for (; bytes.size() >= sizeof block; bytes = bytes.subspan(sizeof block)) {
    std::memcpy(block.data(), bytes.data(), sizeof block);
    take(kLanes);
  }
  if (!bytes.empty()) {
    std::memcpy(block.data(), bytes.data(), bytes.size());
    take(bytes.size() / sizeof(T));
  }
  return {static_cast<int64_t>(*std::ranges::min_element(low)),
          static_cast<int64_t>(*std::ranges::max_element(high))};
}

TokenRange scan(DType type, std::span<const std::byte> bytes) {
  switch (type) {
    case DType::u8: return scan<uint8_t>(bytes);
    case DType::i8: return scan<int8_t>(bytes);
    case DType::i16: return scan<int16_t>(bytes);
    case DType::u16: return scan<uint16_t>(bytes);
    case DType::i32: return scan<int32_t>(bytes);
    case DType::i64: return scan<int64_t>(bytes);
    default: MG_ASSERT(false);
  }
}

}  // namespace

std::optional<TokenRange> IndexedDataset::token_range() const {
  std::optional<TokenRange> found;
  const auto add = [&found](TokenRange part) {
    found = {std::min(part.smallest, found.value_or(part).smallest),
             std::max(part.largest, found.value_or(part).largest)};
  };
  if (dtype_ == DType::f32 || dtype_ == DType::f64) {
    for (int64_t i = 0; i < sequences_; ++i) {
      const std::vector<int64_t> tokens = get(i);
      if (tokens.empty()) continue;
      const auto [low, high] = std::ranges::minmax(tokens);
      add({low, high});
    }
    return found;
  }
  // Consecutive sequences in the file are read together, in pieces that fit in memory.
  constexpr int64_t kPiece = int64_t{16} << 20;
  std::vector<std::byte> buffer;
  int64_t begin = 0, end = 0;
  const auto take = [&] {
    for (; begin < end; begin += kPiece) {
      const auto count = static_cast<size_t>(std::min(kPiece, end - begin));
      if (bin_.mapped()) {
        add(scan(dtype_, bin_.bytes().subspan(static_cast<size_t>(begin), count)));
        continue;
      }
      buffer.resize(count);
      bin_.read(begin, buffer);
      add(scan(dtype_, buffer));
    }
  };
  for (int64_t i = 0; i < sequences_; ++i) {
    const int64_t tokens = length(i), at = range(i, 0, tokens);
    if (at != end) {
      take();
      begin = at;
    }
    end = at + tokens * item_;
  }
  take();
  return found;
}

}  // namespace megatron::data
