#include "checkpoint/fp8_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/low_precision.h"

namespace megatron::checkpoint {
namespace {

constexpr std::string_view kE4m3 = "F8_E4M3", kScaleEnding = "_scale_inv";
constexpr Fp8Block kDefaultFp8Block = {128, 128};

constexpr std::array<float, 256> kE4m3Values = [] {
  std::array<float, 256> values{};
  for (size_t code = 0; code < values.size(); ++code)
    values[code] = megatron::decode(LowFormat::e4m3, static_cast<uint8_t>(code));
  return values;
}();

Fp8Block declared_block(const Json& quantization, const std::string& path) {
  const Json* const size = quantization.find("weight_block_size");
  if (size == nullptr) return kDefaultFp8Block;
  if (size->is_null()) return {0, 0};
  const auto whole = [](const Json& j) { return j.is_integer() && j.as_integer() > 0; };
  MG_CHECK(size->is_array() && size->as_array().size() == 2 &&
               std::ranges::all_of(size->as_array(), whole),
           "'{}': quantization_config.weight_block_size is {}; it must be two whole numbers of at "
           "least 1, or null for one scale per tensor",
           path, size->dump());
  return {size->as_array()[0].as_integer(), size->as_array()[1].as_integer()};
}

int64_t block_count(int64_t size, int64_t block) {
  return size / block + (size % block != 0 ? 1 : 0);
}

}  // namespace

Packing fp8_packing(const Json& quantization, const std::string& path) {
  if (const Json* const fmt = quantization.find("fmt"); fmt != nullptr)
    MG_CHECK(*fmt == Json("e4m3"),
             "'{}': quantization_config.fmt is {}, and only \"e4m3\" is supported. Use a directory "
             "with weights in that, in bf16, fp16 or fp32",
             path, fmt->dump());
  return {.label = "FP8",
          .type = kE4m3,
          .values = "",
          .scales = kScaleEnding,
          .unpack = [block = declared_block(quantization, path)](const PackedPair& pair) {
            return std::make_unique<Fp8Tensor>(pair, block);
          }};
}

float e4m3_value(uint8_t bits) { return kE4m3Values[bits]; }

Fp8Tensor::Fp8Tensor(const PackedPair& pair, Fp8Block block)
    : file_(pair.file),
      scales_name_(pair.scales.name),
      block_(block),
      grid_{1, 1},
      scale_type_(pair.scales.dtype),
      values_(pair.value_bytes),
      scales_(pair.scale_bytes) {
  const TensorInfo &values = pair.values, &scales = pair.scales;
  MG_CHECK(type_name(values) == kE4m3,
           "'{}': tensor '{}' is {}, but has FP8 scales, '{}': it must "
           "be {}",
           file_, values.name, type_name(values), scales.name, kE4m3);
  MG_CHECK(scales.foreign_type.empty() && (scale_type_ == DType::f32 || scale_type_ == DType::bf16),
           "'{}': tensor '{}', the scales of '{}', is {}, and only f32 and bf16 are supported. Use "
           "a directory with scales in f32, or with weights in bf16",
           file_, scales.name, values.name, type_name(scales));
  const Shape& shape = values.shape;
  info_ = {.name = values.name, .dtype = DType::bf16, .shape = shape};
  info_.end = shape.elements() * size_of(DType::bf16);
  const int rank = shape.rank();
  if (scales.shape.elements() == 1) {
    block_ = {std::max<int64_t>(shape.elements(), 1), std::max<int64_t>(shape.elements(), 1)};
    grid_ = {0, 0};  // every block has scale 0
    return;
  }
  MG_CHECK(rank == 2 || rank == 3,
           "'{}': tensor '{}' has shape {}; in FP8 it must be [rows, columns] or [experts, rows, "
           "columns]",
           file_, values.name, shape.str());
  MG_CHECK(block_[0] > 0,
           "'{}': tensor '{}' has shape {}, but without a weight_block_size in "
           "quantization_config '{}' has one scale",
           file_, scales.name, scales.shape.str(), values.name);
  grid_ = {block_count(shape[rank - 2], block_[0]), block_count(shape[rank - 1], block_[1])};
  const Shape wanted = rank == 2 ? Shape{grid_[0], grid_[1]} : Shape{shape[0], grid_[0], grid_[1]};
  MG_CHECK(scales.shape == wanted,
           "'{}': tensor '{}' has shape {}; for '{}' {} in blocks of {} x {} it must be {}", file_,
           scales.name, scales.shape.str(), values.name, shape.str(), block_[0], block_[1],
           wanted.str());
}

float Fp8Tensor::scale(int64_t index) const {
  const std::byte* const from = scales_.data() + index * size_of(scale_type_);
  float value = 0;
  if (scale_type_ == DType::bf16) {
    bf16 stored;
    std::memcpy(&stored, from, sizeof stored);
    value = static_cast<float>(stored);
  } else {
    std::memcpy(&value, from, sizeof value);
  }
  MG_CHECK(std::isfinite(value),
           "'{}': element {} of tensor '{}', the scales of '{}', is {}; it must be finite. "
           "Download the directory again",
           file_, index, scales_name_, info_.name, value);
  return value;
}

void Fp8Tensor::decode(int64_t begin, std::span<bf16> out) const {
  const int64_t end = begin + static_cast<int64_t>(out.size());
  const Shape& shape = info_.shape;
  MG_ASSERT(begin >= 0 && end <= shape.elements());
  const int rank = shape.rank();
  const int64_t columns = rank < 1 ? 1 : shape[rank - 1], rows = rank < 2 ? 1 : shape[rank - 2];
  bf16* to = out.data();
  for (int64_t i = begin; i < end;) {
    const int64_t line = i / columns, column = i % columns, block = column / block_[1];
    const int64_t stop = std::min(line * columns + std::min((block + 1) * block_[1], columns), end);
    const int64_t row = line / rows * grid_[0] + line % rows / block_[0];
    const float factor = scale(row * grid_[1] + block);
    for (; i < stop; ++i)
      *to++ = bf16(kE4m3Values[std::to_integer<size_t>(values_[static_cast<size_t>(i)])] * factor);
  }
}

}  // namespace megatron::checkpoint
