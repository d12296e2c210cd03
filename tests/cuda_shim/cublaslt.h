// The description of a product for cuBLASLt on the CPU (cublaslt.cpp), and its computation
// (cublaslt_products.cpp).
#pragma once

#include <cublasLt.h>

#include <array>

struct cublasLtContext {
  bool turn = false;  // in-place sums alternate between two orders
};
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType type;
  uint64_t rows, cols;
  int64_t ld;
  int32_t batch = 1;
  int64_t offset = 0;
};
struct cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute;
  cudaDataType scale;
  int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;  // or the destination of its gradient
  int32_t bias_type = -1;
  void* aux = nullptr;
  int64_t aux_ld = 0;
  int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  const void *a_scale = nullptr, *b_scale = nullptr;  // on the device; null: 1
  int32_t a_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, b_mode = a_mode;
};
struct cublasLtMatmulPreferenceOpaque_t {
  uint64_t workspace = 0;
  uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::array<uint32_t, 4> alignment{256, 256, 256, 256};
};

namespace cuda_shim::lt {

using Layout = cublasLtMatrixLayoutOpaque_t;
using Product = cublasLtMatmulDescOpaque_t;

struct Call {
  Product operation;
  Layout a, b, c, d;
};

// The content of cublasLtMatmulAlgo_t.
struct Algorithm {
  uint64_t call;  // fingerprint of the call that it was chosen for
  uint64_t workspace;
  int32_t parts;
  uint32_t scheme;
  std::array<uint32_t, 4> alignment;  // promised alignment of A, B, C and D
  uint16_t bias_alignment, aux_alignment;
  int32_t place;  // place in the list that named it
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

struct Work {
  Call call;
  Algorithm algorithm;
  const void *a, *b, *c, *bias;
  void *d, *workspace;
  const void *alpha, *beta;  // f32, on the device or null: the numbers below
  float host_alpha, host_beta;
  bool backwards;  // in-place sums start from the last part
};

int64_t bytes(cudaDataType type, int64_t elements);
inline bool is_fp8(cudaDataType type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
inline bool is_narrow(cudaDataType type) { return is_fp8(type) || type == CUDA_R_4F_E2M1; }

// Elements along K with one scale; 0: the matrix has one.
int64_t scaled_elements(int32_t mode);
// Bytes of the scales of an operand with `depth` elements along K and `places` along M or N.
int64_t scale_bytes(int32_t mode, int64_t depth, int64_t places);

bool adds_bias(const Product& o);
bool sums_b(const Product& o);
bool has_bias(const Product& o);
bool differentiates(const Product& o);
bool has_aux(const Product& o);
bool applies_gelu(const Product& o);

// Multiplies operands that were already validated.
void multiply(const Work& work);

}  // namespace cuda_shim::lt
