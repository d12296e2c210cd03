// Which of cuBLASLt's algorithms the matrix products of a CUDA stream take.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/stream.h"

namespace megatron::kernels {

struct GemmChoice {
  std::string product;  // all that determines it: sizes, strides, types, epilogue, ...
  // cublasLtMatmulAlgo_t, which means something to the same cuBLASLt on the same kind of GPU.
  std::vector<uint64_t> algorithm;
  bool operator==(const GemmChoice&) const = default;
};

class GemmTuning {
 public:
  virtual ~GemmTuning() = default;
  // From now on a product in `choices` takes the algorithm that is named there, and any other the one
  // that cuBLASLt proposes first, whatever it took before. Where cuBLASLt does not propose the one
  // that is named, there is a warning, and the product is like any other.
  virtual void use(std::vector<GemmChoice> choices) = 0;
  // From now on, until use(): the first call of any other product times its algorithms on the call's
  // own operands, and the fastest computes this call and all later ones. Not timed: a product that is
  // first called while the stream records, and one that is added to a matrix that is not contiguous.
  virtual void time_others() = 0;
  // What the products that were called so far take, ordered by `product`.
  virtual std::vector<GemmChoice> choices() const = 0;
  virtual std::string library() const = 0;  // "cuBLASLt 130100"
};

// Of a CUDA stream, as long as it lives.
GemmTuning& gemm_tuning(Stream& stream);

}  // namespace megatron::kernels
