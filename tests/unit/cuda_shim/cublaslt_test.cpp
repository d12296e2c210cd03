// cuBLASLt on the CPU: its results and its refusals.
#include <cublasLt.h>
#include <gtest/gtest.h>

#include <vector>

#include "cuda_shim/control.h"

namespace {

// D [2,2] = A [2,K] B [K,2], column-major. A test may change each part.
class Product : public ::testing::Test {
 protected:
  static constexpr int kDepth = 5;

  void SetUp() override {
    ASSERT_EQ(cublasLtCreate(&library), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
              CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cublasLtMatmulPreferenceCreate(&preference), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&memory, kBytes), cudaSuccess);
    layouts(CUDA_R_32F, CUDA_R_32F, 2);
    promise(16);
  }
  void TearDown() override {
    for (cublasLtMatrixLayout_t layout : {a, b, d}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatmulDescDestroy(operation);
    cublasLtDestroy(library);
    cudaStreamDestroy(stream);
    cudaFree(memory);
    shim_problems();
  }

  void layouts(cudaDataType in, cudaDataType out, int64_t ld) {
    for (cublasLtMatrixLayout_t layout : {a, b, d}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatrixLayoutCreate(&a, in, 2, kDepth, ld);
    cublasLtMatrixLayoutCreate(&b, in, kDepth, 2, kDepth);
    cublasLtMatrixLayoutCreate(&d, out, 2, 2, 2);
  }
  void promise(uint32_t bytes) {
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      EXPECT_EQ(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &bytes, sizeof(bytes)),
                CUBLAS_STATUS_SUCCESS);
    }
  }
  template <class T>
  void prefer(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    EXPECT_EQ(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
              CUBLAS_STATUS_SUCCESS);
  }

  std::vector<cublasLtMatmulHeuristicResult_t> ask() {
    std::vector<cublasLtMatmulHeuristicResult_t> found(8);
    int count = 0;
    status = cublasLtMatmulAlgoGetHeuristic(library, operation, a, b, d, d, preference, 8,
                                            found.data(), &count);
    found.resize(static_cast<size_t>(status == CUBLAS_STATUS_SUCCESS ? count : 0));
    return found;
  }
  cublasStatus_t multiply(const cublasLtMatmulHeuristicResult_t& way, const float* pa,
                          size_t workspace) {
    const float one = 1, zero = 0;
    return cublasLtMatmul(library, operation, &one, pa, a, memory + kB, b, &zero, memory + kD, d,
                          memory + kD, d, &way.algo, memory + workspace_at, workspace, stream);
  }

  static constexpr size_t kBytes = 1 << 16;
  static constexpr int kB = 64, kD = 128;  // offsets in memory, in f32
  int workspace_at = 256;
  cublasLtHandle_t library = nullptr;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cudaStream_t stream = nullptr;
  float* memory = nullptr;
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
};

TEST_F(Product, IsComputedWhenTheStreamRuns) {
  const std::vector<float> left{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, right{1, 0, 2, 0, 3, 0, 1, 0, 1, 0};
  ASSERT_EQ(cudaMemcpy(memory, left.data(), 40, cudaMemcpyHostToDevice), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(memory + kB, right.data(), 40, cudaMemcpyHostToDevice), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const auto ways = ask();
  ASSERT_FALSE(ways.empty());
  ASSERT_EQ(multiply(ways.back(), memory, 4096), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  std::vector<float> out(4);
  ASSERT_EQ(cudaMemcpy(out.data(), memory + kD, 16, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(out, (std::vector<float>{1 + 10 + 27, 2 + 12 + 30, 3 + 7, 4 + 8}));
}

TEST_F(Product, SplitsOnlyAsPreferred) {
  const auto schemes = [&] {
    uint32_t all = 0;
    for (const auto& way : ask()) {
      uint32_t scheme = 0;
      size_t written = 0;
      EXPECT_EQ(
          cublasLtMatmulAlgoConfigGetAttribute(&way.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                               &scheme, sizeof(scheme), &written),
          CUBLAS_STATUS_SUCCESS);
      all |= scheme;
    }
    return all;
  };
  EXPECT_EQ(schemes(), 0u) << "parts need a workspace";
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{1} << 20);
  EXPECT_EQ(schemes(),
            uint32_t{CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  EXPECT_EQ(schemes(), uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
}

TEST_F(Product, RefusesLayoutsAndTypes) {
  layouts(CUDA_R_32F, CUDA_R_32F, 1);
  ask();
  EXPECT_EQ(status, CUBLAS_STATUS_INVALID_VALUE) << "columns of 2 that begin 1 apart";
  layouts(CUDA_R_16BF, CUDA_R_16F, 2);
  ask();
  EXPECT_EQ(status, CUBLAS_STATUS_NOT_SUPPORTED);
  layouts(CUDA_R_32F, CUDA_R_16BF, 2);
  ask();
  EXPECT_EQ(status, CUBLAS_STATUS_NOT_SUPPORTED);
  layouts(CUDA_R_16BF, CUDA_R_32F, 2);
  EXPECT_FALSE(ask().empty());
  const int32_t transposed = CUBLAS_OP_T;
  cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                 sizeof(transposed));
  ask();
  EXPECT_EQ(status, CUBLAS_STATUS_INVALID_VALUE) << "[5,2] times [5,2]";
}

// Which scales a generation of GPUs multiplies by (cuBLAS 13 documentation, section 3.1.4).
TEST_F(Product, KnowsTheScalesOfAComputeCapability) {
  struct Scales {
    cudaDataType type;
    int32_t a, b;
    std::vector<int> capabilities;  // of 80, 89, 90, 100
  };
  const int32_t vectors = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
                squares = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
                mx = CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0,
                nv = CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
  const int32_t transposed = CUBLAS_OP_T;
  ASSERT_EQ(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                           sizeof(transposed)),
            CUBLAS_STATUS_SUCCESS);
  for (const Scales& scales :
       {Scales{CUDA_R_8F_E4M3, 0, 0, {89, 90, 100}}, Scales{CUDA_R_8F_E4M3, vectors, vectors, {90}},
        Scales{CUDA_R_8F_E4M3, vectors, squares, {90}},
        Scales{CUDA_R_8F_E4M3, squares, vectors, {90}},
        Scales{CUDA_R_8F_E4M3, squares, squares, {}}, Scales{CUDA_R_8F_E4M3, vectors, mx, {}},
        Scales{CUDA_R_8F_E4M3, mx, mx, {100}}, Scales{CUDA_R_4F_E2M1, nv, nv, {100}},
        Scales{CUDA_R_4F_E2M1, 0, 0, {}}, Scales{CUDA_R_8F_E4M3, nv, nv, {}},
        Scales{CUDA_R_16BF, vectors, vectors, {}}}) {
    for (cublasLtMatrixLayout_t layout : {a, b, d}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatrixLayoutCreate(&a, scales.type, 128, 16, 128);
    cublasLtMatrixLayoutCreate(&b, scales.type, 128, 32, 128);
    cublasLtMatrixLayoutCreate(&d, CUDA_R_16BF, 16, 32, 16);
    for (const auto& [attribute, mode] : {std::pair{CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scales.a},
                                          {CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scales.b}})
      ASSERT_EQ(cublasLtMatmulDescSetAttribute(operation, attribute, &mode, sizeof(mode)),
                CUBLAS_STATUS_SUCCESS);
    std::vector<int> known;
    for (const int capability : {80, 89, 90, 100}) {
      ASSERT_TRUE(shim_set("capability", capability));
      if (!ask().empty()) known.push_back(capability);
    }
    EXPECT_EQ(known, scales.capabilities) << scales.type << " " << scales.a << " " << scales.b;
  }
  ASSERT_TRUE(shim_set("capability", 90));
}

TEST_F(Product, RefusesAttributesOfAnotherSize) {
  const int64_t wide = CUBLAS_OP_T;
  EXPECT_EQ(
      cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &wide, sizeof(wide)),
      CUBLAS_STATUS_INVALID_VALUE);
  const int64_t batch = 2;
  EXPECT_EQ(cublasLtMatrixLayoutSetAttribute(a, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                             sizeof(batch)),
            CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(Product, RefusesABiasThatIsNotThere) {
  const uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
  cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                 sizeof(epilogue));
  ask();
  EXPECT_EQ(status, CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(Product, RefusesMemoryThatIsNotAsPromised) {
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{1} << 20);
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  const auto ways = ask();
  ASSERT_EQ(ways.size(), 3u);
  const auto problem = [] { return std::string(shim_problems()); };
  EXPECT_EQ(multiply(ways[0], memory + 1, 4096), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_NE(problem().find("aligned to less"), std::string::npos);
  EXPECT_EQ(multiply(ways[0], memory, ways[0].workspaceSize - 1), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_NE(problem().find("workspace"), std::string::npos);
  workspace_at += 32;
  EXPECT_EQ(multiply(ways[0], memory, 4096), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_NE(problem().find("workspace"), std::string::npos) << "128 bytes behind";
  workspace_at -= 32;
  alignas(16) const std::vector<float> host(64);
  EXPECT_EQ(multiply(ways[1], host.data(), 4096), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_NE(problem().find("not memory of the device"), std::string::npos);
  promise(4);
  EXPECT_EQ(multiply(ask().back(), memory + 1, 4096), CUBLAS_STATUS_SUCCESS);
  layouts(CUDA_R_32F, CUDA_R_32F, 3);
  EXPECT_EQ(multiply(ways[1], memory, 4096), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_NE(problem().find("another product"), std::string::npos);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
}

TEST_F(Product, RefusesTheFirstAlgorithmsOfAListWhereTold) {
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{1} << 20);
  const auto ways = ask();
  ASSERT_EQ(ways.size(), 4u);
  ASSERT_TRUE(shim_set("refuse_algorithms", 2));
  EXPECT_EQ(multiply(ways[0], memory, 4096), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(multiply(ways[1], memory, 4096), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(multiply(ways[2], memory, 4096), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(multiply(ways[3], memory, 4096), CUBLAS_STATUS_SUCCESS);
  ASSERT_TRUE(shim_set("refusal", CUBLAS_STATUS_ARCH_MISMATCH));
  EXPECT_EQ(multiply(ways[1], memory, 4096), CUBLAS_STATUS_ARCH_MISMATCH);
  ASSERT_TRUE(shim_set("refusal", CUBLAS_STATUS_NOT_SUPPORTED));
  ASSERT_TRUE(shim_set("refuse_algorithms", 0));
  EXPECT_EQ(multiply(ways[0], memory, 4096), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_STREQ(shim_problems(), "") << "a refusal is no misuse";
}

}  // namespace
