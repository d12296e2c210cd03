// Expert weights in MXFP4 (OCP Microscaling Formats 1.0), as in the GPT-OSS release: two tensors of
// bytes represent one of shape [E, columns, rows] that is not stored. NAME_blocks [E, rows, columns
// / 32, 16] holds two e2m1 values per byte, the lower four bits first; NAME_scales [E, rows,
// columns / 32] holds the exponent of each 32 values, plus 127.
#pragma once

#include <span>
#include <string>

#include "base/dtype.h"
#include "base/json.h"
#include "checkpoint/tensor_file.h"

namespace megatron::checkpoint {

inline constexpr std::string_view kMxfp4Blocks = "_blocks", kMxfp4Scales = "_scales";

// Removes quantization_config from the contents of the config.json `path`. Returns true if it was
// there and says that weights are in MXFP4; throws Error for any other quantization.
bool take_mxfp4(Json& config, const std::string& path);

// One such pair, read as a bf16 tensor. The conversion is exact except for values that overflow.
class Mxfp4Tensor {
 public:
  // Throws Error naming `file`, which holds the blocks, and the tensor for types and shapes other
  // than those above. The bytes must outlive this.
  Mxfp4Tensor(const TensorInfo& blocks, std::span<const std::byte> block_bytes,
              const TensorInfo& scales, std::span<const std::byte> scale_bytes,
              const std::string& file);

  // Describes the tensor that blocks and scales represent: NAME, bf16, [E, columns, rows].
  const TensorInfo& info() const { return info_; }
  // Decodes elements from number `begin` on of [E, rows, columns], row-major: the order of the
  // blocks.
  void decode(int64_t begin, std::span<bf16> out) const;
  // Decodes elements of [E, columns, rows], the order of the tensor that the pair represents.
  void decode_stored(int64_t begin, std::span<bf16> out) const;

 private:
  TensorInfo info_;
  std::span<const std::byte> blocks_, scales_;
};

}  // namespace megatron::checkpoint
