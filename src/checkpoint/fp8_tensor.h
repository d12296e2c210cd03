// Weights in FP8 as DeepSeek-V3 is published: NAME [..., rows, columns] in e4m3, and
// NAME_scale_inv, f32 or bf16 [..., ceil(rows / b0), ceil(columns / b1)], whose elements each
// multiply a block of b0 x b1 values. One scale may also apply to the whole tensor.
#pragma once

#include <array>

#include "checkpoint/packed_tensor.h"

namespace megatron::checkpoint {

// Rows and columns that share a scale; zeros: only tensors with one scale are in the directory.
using Fp8Block = std::array<int64_t, 2>;

// The format that a quantization_config with quant_method "fp8" declares: weight_block_size,
// [128, 128] if missing. Throws Error naming the config.json `path`, the key and its value for
// other kinds of fp8.
Packing fp8_packing(const Json& quantization, const std::string& path);

// The value of an e4m3 number: no infinities, and NaN only if all bits but the sign are set.
float e4m3_value(uint8_t bits);

// One such tensor. Products with scales are rounded once, from f32 to bf16.
class Fp8Tensor : public PackedTensor {
 public:
  Fp8Tensor(const PackedPair& pair, Fp8Block block);
  bool transposed() const override { return false; }
  // Throws Error naming both tensors for a scale that is not finite.
  void decode(int64_t begin, std::span<bf16> out) const override;
  void decode_stored(int64_t begin, std::span<bf16> out) const override { decode(begin, out); }

 private:
  float scale(int64_t index) const;

  std::string file_, scales_name_;
  Fp8Block block_, grid_;  // grid_: rows and columns of the scales of one matrix
  DType scale_type_;
  std::span<const std::byte> values_, scales_;
};

}  // namespace megatron::checkpoint
