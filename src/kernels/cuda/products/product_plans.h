// Plans of matrix products by cuBLASLt, kept for a stream.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/dtype.h"
#include "device/cuda/stream.h"
#include "kernels/gemm.h"
#include "kernels/gemm_tuning.h"

namespace megatron::kernels::cuda {

// All that determines a plan. Row-major: out [M,N] = op(a) op(b) + bias + (accumulate ? out : 0),
// `batch` times; strides in elements, rows do not overlap. Epilogues as in kernels/gemm.h: aux is
// contiguous, and the gradient of a bias is written, not added.
struct Product {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  int64_t row_a = 0, row_b = 0, row_out = 0;        // from one row to the next
  int64_t batch_a = 0, batch_b = 0, batch_out = 0;  // from one matrix to the next
  bool transpose_a = false, transpose_b = false, accumulate = false, bias = false;
  DType in = DType::f32, out = DType::f32;              // the bias is of the type of out
  uint32_t align_a = 16, align_b = 16, align_out = 16;  // bytes, true of the pointers
  int64_t workspace = 0;                                // bytes
  Epilogue epilogue = Epilogue::none;
  bool aux = false, bias_gradient = false;
  bool any_order = false;  // of sums: bits may differ from run to run

  auto operator<=>(const Product&) const = default;
};

struct ProductPointers {
  const void* a = nullptr;
  const void* b = nullptr;
  void* out = nullptr;
  // Aligned to 16 bytes: the bias, or where its gradient goes, in f32; aux.
  const void* bias = nullptr;
  void* aux = nullptr;
  void* workspace = nullptr;  // aligned to 256 bytes
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

// Descriptors and the algorithms of one product.
struct ProductPlan {
  Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> operation;
  Layout a, b, out;  // as cuBLASLt sees row-major matrices: a is column-major op(b)^T
  // Those whose order of sums may be taken, cuBLASLt's best one first. It may refuse one that it
  // named: that one is dropped, and the first that is left is chosen.
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  size_t chosen = 0;  // the one in use
  int named = 0;      // how many there were
};

class ProductPlans final : public GemmTuning {
 public:
  // The stream's own.
  static ProductPlans& of(Stream& stream);
  explicit ProductPlans(megatron::cuda::CudaStream& stream);

  // Queues the product. Throws Error when cuBLASLt has no algorithm, or refuses all that it named.
  void run(const Product& product, const ProductPointers& pointers);
  // The same where cuBLASLt does it: not every epilogue is there for every product. False: nothing
  // is queued, now and from now on.
  bool run_if_there(const Product& product, const ProductPointers& pointers);

  void use(std::vector<GemmChoice> choices) override;
  void time_others() override { times_ = true; }
  std::vector<GemmChoice> choices() const override;
  std::string library() const override;

 private:
  // Null when it has none.
  ProductPlan* find(const Product& product, const ProductPointers& pointers);
  bool choose_given(const Product& product, ProductPlan& plan) const;
  void choose_fastest(const Product& product, ProductPlan& plan, const ProductPointers& pointers);
  cublasStatus_t call(const Product& product, const ProductPlan& plan,
                      const cublasLtMatmulAlgo_t& algorithm, const ProductPointers& pointers) const;
  // Success, or the status by which the last of the plan's algorithms was refused.
  cublasStatus_t queue(const Product& product, ProductPlan& plan, const ProductPointers& pointers);

  megatron::cuda::CudaStream& stream_;
  bool times_ = false;
  std::map<std::string, std::vector<uint64_t>> given_;  // choices of use()
  Owned<cublasLtHandle_t, cublasLtDestroy> library_;
  std::map<Product, std::unique_ptr<ProductPlan>> plans_;
};

}  // namespace megatron::kernels::cuda
