#include "checkpoint/mxfp4.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/low_precision.h"

namespace megatron::checkpoint {
namespace {

constexpr int64_t kBlock = 32;  // values that share a scale
constexpr int64_t kBlockBytes = kBlock / 2;
constexpr std::string_view kBlocksEnding = "_blocks";

constexpr std::array<float, 16> kValues = [] {
  std::array<float, 16> values{};
  for (size_t code = 0; code < values.size(); ++code)
    values[code] = megatron::decode(LowFormat::e2m1, static_cast<uint8_t>(code));
  return values;
}();

}  // namespace

Packing mxfp4_packing() {
  return {.label = "MXFP4",
          .type = "u8",
          .values = kBlocksEnding,
          .scales = "_scales",
          .unpack = [](const PackedPair& pair) { return std::make_unique<Mxfp4Tensor>(pair); }};
}

Mxfp4Tensor::Mxfp4Tensor(const PackedPair& pair)
    : blocks_(pair.value_bytes), scales_(pair.scale_bytes) {
  const TensorInfo &blocks = pair.values, &scales = pair.scales;
  const std::string& file = pair.file;
  for (const TensorInfo* info : {&blocks, &scales})
    MG_CHECK(info->dtype == DType::u8 && info->foreign_type.empty(),
             "'{}': tensor '{}' is {}; MXFP4 needs u8", file, info->name, type_name(*info));
  const Shape& s = blocks.shape;
  MG_CHECK(s.rank() == 4 && s[3] == kBlockBytes,
           "'{}': tensor '{}' has shape {}; MXFP4 needs [experts, rows, columns / {}, {}]", file,
           blocks.name, s.str(), kBlock, kBlockBytes);
  const Shape wanted{s[0], s[1], s[2]};
  MG_CHECK(scales.shape == wanted, "'{}': tensor '{}' has shape {}; to match '{}' it must be {}",
           file, scales.name, scales.shape.str(), blocks.name, wanted.str());
  info_ = {.name = blocks.name.substr(0, blocks.name.size() - kBlocksEnding.size()),
           .dtype = DType::bf16,
           .shape = Shape{s[0], s[2] * kBlock, s[1]}};
  info_.end = static_cast<int64_t>(blocks_.size()) * 2 * size_of(DType::bf16);
}

void Mxfp4Tensor::decode(int64_t begin, std::span<bf16> out) const {
  const int64_t end = begin + static_cast<int64_t>(out.size());
  MG_ASSERT(begin >= 0 && end <= info_.shape.elements());
  bf16* to = out.data();
  for (int64_t i = begin; i < end;) {
    const int64_t block = i / kBlock, stop = std::min((block + 1) * kBlock, end);
    const float factor = e8m0_value(std::to_integer<uint8_t>(scales_[static_cast<size_t>(block)]));
    std::array<bf16, kValues.size()> values;
    for (size_t v = 0; v < values.size(); ++v) values[v] = bf16(kValues[v] * factor);
    for (; i < stop; ++i) {
      const int bits = std::to_integer<int>(blocks_[static_cast<size_t>(i / 2)]);
      *to++ = values[static_cast<size_t>(i % 2 == 0 ? bits & 15 : bits >> 4)];
    }
  }
}

void Mxfp4Tensor::decode_stored(int64_t begin, std::span<bf16> out) const {
  const int64_t columns = info_.shape[1], rows = info_.shape[2];
  MG_ASSERT(begin >= 0 && begin + static_cast<int64_t>(out.size()) <= info_.shape.elements());
  for (bf16& value : out) {
    const int64_t row = begin % rows, column = begin / rows % columns,
                  expert = begin / rows / columns;
    decode((expert * rows + row) * columns + column, std::span(&value, 1));
    ++begin;
  }
}

}  // namespace megatron::checkpoint
