#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "data/indexed_dataset.h"

namespace megatron::data {
namespace {

// Blocks of a fixed size, each lane with a minimum and a maximum of its own, become vector code.
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
  std::optional<TokenRange> range;
  const auto add = [&range](TokenRange part) {
    range = {std::min(part.smallest, range.value_or(part).smallest),
             std::max(part.largest, range.value_or(part).largest)};
  };
  if (dtype_ == DType::f32 || dtype_ == DType::f64) {
    for (int64_t i = 0; i < sequences_; ++i) {
      const std::vector<int64_t> tokens = get(i);
      if (tokens.empty()) continue;
      const auto [low, high] = std::ranges::minmax(tokens);
      add({low, high});
    }
    return range;
  }
  // Sequences that follow each other in the file are read as one.
  std::span<const std::byte> run;
  for (int64_t i = 0; i < sequences_; ++i) {
    const auto next = bytes(i);
    if (next.data() == run.data() + run.size()) {
      run = {run.data(), run.size() + next.size()};
      continue;
    }
    if (!run.empty()) add(scan(dtype_, run));
    run = next;
  }
  if (!run.empty()) add(scan(dtype_, run));
  return range;
}

}  // namespace megatron::data
