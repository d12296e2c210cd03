// Plans of matrix products with cuBLASLt, cached per stream.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/dtype.h"
#include "base/low_precision.h"
#include "device/cuda/stream.h"
#include "kernels/coded_product.h"
#include "kernels/gemm.h"
#include "kernels/gemm_tuning.h"

namespace megatron::kernels::cuda {

// Everything that determines a plan. Row-major: out [M,N] = op(a) op(b) + bias + (accumulate ? out
// : 0), `batch` times; strides in elements, rows do not overlap. Epilogues as in kernels/gemm.h,
// but aux is contiguous, and the gradient of a bias is written, not accumulated. Operands in u8 are
// codes.
struct Product {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  int64_t row_a = 0, row_b = 0, row_out = 0;        // row strides
  int64_t batch_a = 0, batch_b = 0, batch_out = 0;  // matrix strides
  bool transpose_a = false, transpose_b = false, accumulate = false, bias = false;
  DType in = DType::f32, out = DType::f32;                           // out is also the bias's type
  LowFormat a_format = LowFormat::e4m3, b_format = LowFormat::e4m3;  // of u8
  ScaleLayout a_layout = ScaleLayout::tensor, b_layout = ScaleLayout::tensor;  // of u8
  bool scaled = false;                                  // operands have scales of tensors
  uint32_t align_a = 16, align_b = 16, align_out = 16;  // alignment of the pointers in bytes
  int64_t workspace = 0;                                // bytes
  Epilogue epilogue = Epilogue::none;
  bool aux = false, bias_gradient = false;
  bool any_order = false;  // sums in any order: bits may differ between runs

  auto operator<=>(const Product&) const = default;
};

struct ProductPointers {
  const void* a = nullptr;
  const void* b = nullptr;
  void* out = nullptr;
  // bias: f32 bias or destination of its gradient. Both pointers are aligned to 16 bytes.
  const void* bias = nullptr;
  void* aux = nullptr;
  void* workspace = nullptr;       // aligned to 256 bytes
  const float* factors = nullptr;  // on the GPU, by ProductFactor; null: no operand has a scale
  const void *a_scales = nullptr, *b_scales = nullptr;  // of blocks; null: none
};

template <auto destroy>
struct Destroy {
  template <class T>
  void operator()(T* handle) const {
    destroy(handle);
  }
};
template <class Handle, auto destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<destroy>>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

// cuBLASLt descriptors and algorithms of one product.
struct ProductPlan {
  Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> operation;
  Layout a, b, out;  // in cuBLASLt's view of row-major matrices: a is column-major op(b)^T
  // Algorithms with an acceptable order of sums, cuBLASLt's best first. If cuBLASLt refuses an
  // algorithm that it proposed, that one is removed and the first remaining one is chosen.
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  size_t chosen = 0;  // index of the one in use
  int named = 0;      // number of algorithms that cuBLASLt proposed
};

class ProductPlans final : public GemmTuning {
 public:
  // The plans of a stream.
  static ProductPlans& of(Stream& stream);
  explicit ProductPlans(megatron::cuda::CudaStream& stream);

  // Queues the product. Throws Error if cuBLASLt has no algorithm, or refuses all that it proposed.
  void run(const Product& product, const ProductPointers& pointers);
  // The same if cuBLASLt supports the product with its epilogue. Returns false and queues nothing
  // if not, in this and later calls.
  bool run_if_there(const Product& product, const ProductPointers& pointers);

  void use(std::vector<GemmChoice> choices) override;
  void time_others() override { times_ = true; }
  std::vector<GemmChoice> choices() const override;
  std::string library() const override;

 private:
  // Returns null if cuBLASLt has no algorithm.
  ProductPlan* find(const Product& product, const ProductPointers& pointers);
  bool choose_given(const Product& product, ProductPlan& plan) const;
  void choose_fastest(const Product& product, ProductPlan& plan, const ProductPointers& pointers);
  cublasStatus_t call(const Product& product, const ProductPlan& plan,
                      const cublasLtMatmulAlgo_t& algorithm, const ProductPointers& pointers) const;
  // Returns success, or the status with which the last of the plan's algorithms was refused.
  cublasStatus_t queue(const Product& product, ProductPlan& plan, const ProductPointers& pointers);

  megatron::cuda::CudaStream& stream_;
  bool times_ = false;
  std::map<std::string, std::vector<uint64_t>> given_;  // choices set by use()
  Owned<cublasLtHandle_t, cublasLtDestroy> library_;
  std::map<Product, std::unique_ptr<ProductPlan>> plans_;
};

}  // namespace megatron::kernels::cuda
