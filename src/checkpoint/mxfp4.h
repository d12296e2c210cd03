// Weights of experts in MXFP4 (OCP Microscaling Formats 1.0), as GPT-OSS is released: two tensors of
// bytes stand for one of [E, columns, rows] that is not there. NAME_blocks [E, rows, columns / 32, 16]
// holds two e2m1 values a byte, the lower four bits first; NAME_scales [E, rows, columns / 32] holds
// the exponent of each 32 values, plus 127.
#pragma once

#include <span>
#include <string>

#include "base/dtype.h"
#include "base/json.h"
#include "checkpoint/tensor_file.h"

namespace megatron::checkpoint {

inline constexpr std::string_view kMxfp4Blocks = "_blocks", kMxfp4Scales = "_scales";

// Takes quantization_config out of what `path`, a config.json, holds. Returns whether it was there,
// which says that weights are in MXFP4; throws Error for any other quantization.
bool take_mxfp4(Json& config, const std::string& path);

// One such pair, read as a tensor of bf16, which is exact but for values that overflow.
class Mxfp4Tensor {
 public:
  // Throws Error naming `file`, where the blocks lie, and the tensor for types and shapes that are
  // not those above. Bytes outlive this.
  Mxfp4Tensor(const TensorInfo& blocks, std::span<const std::byte> block_bytes,
              const TensorInfo& scales, std::span<const std::byte> scale_bytes,
              const std::string& file);

  // Of the tensor that they stand for: NAME, bf16, [E, columns, rows].
  const TensorInfo& info() const { return info_; }
  // Elements from number `begin` on of [E, rows, columns], row-major: the order of the blocks.
  void decode(int64_t begin, std::span<bf16> out) const;
  // The same of [E, columns, rows], the order of the tensor that they stand for.
  void decode_stored(int64_t begin, std::span<bf16> out) const;

 private:
  TensorInfo info_;
  std::span<const std::byte> blocks_, scales_;
};

}  // namespace megatron::checkpoint
