// Expert weights in MXFP4 (OCP Microscaling Formats 1.0), as in the GPT-OSS release: two tensors of
// bytes represent one of shape [E, columns, rows] that is not stored. NAME_blocks [E, rows, columns
// / 32, 16] holds two e2m1 values per byte, the lower four bits first; NAME_scales [E, rows,
// columns / 32] holds the exponent of each 32 values, plus 127.
#pragma once

#include "checkpoint/packed_tensor.h"

namespace megatron::checkpoint {

Packing mxfp4_packing();

// One such pair. The conversion is exact except for values that overflow.
class Mxfp4Tensor : public PackedTensor {
 public:
  explicit Mxfp4Tensor(const PackedPair& pair);
  bool transposed() const override { return true; }
  void decode(int64_t begin, std::span<bf16> out) const override;
  void decode_stored(int64_t begin, std::span<bf16> out) const override;

 private:
  std::span<const std::byte> blocks_, scales_;
};

}  // namespace megatron::checkpoint
