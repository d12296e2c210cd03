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
  // From now on the first call of a product times its algorithms on the call's own operands, and the
  // fastest computes this call and all later ones. A product in `kept` takes the algorithm that is
  // named there; where cuBLASLt does not propose it, there is a warning, and it is timed anew. Not
  // timed, and computed by the algorithm that is proposed first: a product that is first called while
  // the stream records, and one that is added to a matrix that is not contiguous.
  virtual void begin(std::vector<GemmChoice> kept) = 0;
  // Of all products that were called, and what is left of `kept`, ordered by `product`.
  virtual std::vector<GemmChoice> choices() const = 0;
  virtual std::string library() const = 0;  // "cuBLASLt 130100"
};

// Of a CUDA stream, as long as it lives.
GemmTuning& gemm_tuning(Stream& stream);

}  // namespace megatron::kernels
