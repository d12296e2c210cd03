// Selects cuBLASLt's algorithms for the matrix products of a CUDA stream.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/stream.h"

namespace megatron::kernels {

struct GemmChoice {
  std::string product;  // identifies the product: sizes, strides, types, epilogue, ...
  // cublasLtMatmulAlgo_t, only meaningful to the same cuBLASLt on the same kind of GPU.
  std::vector<uint64_t> algorithm;
  bool operator==(const GemmChoice&) const = default;
};

class GemmTuning {
 public:
  virtual ~GemmTuning() = default;
  // From now on, a product in `choices` uses the algorithm given there, and any other product
  // cuBLASLt's first proposal, regardless of earlier choices. If cuBLASLt does not propose the
  // given algorithm, warns and uses its first proposal.
  virtual void use(std::vector<GemmChoice> choices) = 0;
  // From now on, until use(): the first call of any other product times its algorithms on the
  // call's own operands, and the fastest computes this call and all later ones. Not timed: a
  // product that is first called during stream capture, and one that is added to a non-contiguous
  // matrix.
  virtual void time_others() = 0;
  // Returns the algorithms of the products called so far, ordered by `product`.
  virtual std::vector<GemmChoice> choices() const = 0;
  virtual std::string library() const = 0;  // "cuBLASLt 130100"
};

// Tuning state of a CUDA stream; valid as long as the stream.
GemmTuning& gemm_tuning(Stream& stream);

}  // namespace megatron::kernels
