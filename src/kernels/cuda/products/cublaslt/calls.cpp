// Defines cuBLASLt's functions under the names of its header; each calls the library that
// device/cuda/libraries.h opens.
#include <cublasLt.h>

#include "device/cuda/libraries.h"

namespace {

template <class Function>
Function* find(const char* name) {
  return megatron::cuda::function_of<Function>(megatron::cuda::NvidiaLibrary::cublas_lt, name);
}

}  // namespace

size_t cublasLtGetVersion() {
  static const auto call = find<decltype(cublasLtGetVersion)>("cublasLtGetVersion");
  return call();
}

const char* cublasLtGetStatusName(cublasStatus_t status) {
  static const auto call = find<decltype(cublasLtGetStatusName)>("cublasLtGetStatusName");
  return call(status);
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  static const auto call = find<decltype(cublasLtGetStatusString)>("cublasLtGetStatusString");
  return call(status);
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* library) {
  static const auto call = find<decltype(cublasLtCreate)>("cublasLtCreate");
  return call(library);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t library) {
  static const auto call = find<decltype(cublasLtDestroy)>("cublasLtDestroy");
  return call(library);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t stride) {
  static const auto call = find<decltype(cublasLtMatrixLayoutCreate)>("cublasLtMatrixLayoutCreate");
  return call(layout, type, rows, columns, stride);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  static const auto call =
      find<decltype(cublasLtMatrixLayoutDestroy)>("cublasLtMatrixLayoutDestroy");
  return call(layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t size) {
  static const auto call =
      find<decltype(cublasLtMatrixLayoutSetAttribute)>("cublasLtMatrixLayoutSetAttribute");
  return call(layout, attribute, value, size);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  static const auto call = find<decltype(cublasLtMatmulDescCreate)>("cublasLtMatmulDescCreate");
  return call(operation, compute, scale);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  static const auto call = find<decltype(cublasLtMatmulDescDestroy)>("cublasLtMatmulDescDestroy");
  return call(operation);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t size) {
  static const auto call =
      find<decltype(cublasLtMatmulDescSetAttribute)>("cublasLtMatmulDescSetAttribute");
  return call(operation, attribute, value, size);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  static const auto call =
      find<decltype(cublasLtMatmulPreferenceCreate)>("cublasLtMatmulPreferenceCreate");
  return call(preference);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  static const auto call =
      find<decltype(cublasLtMatmulPreferenceDestroy)>("cublasLtMatmulPreferenceDestroy");
  return call(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t size) {
  static const auto call =
      find<decltype(cublasLtMatmulPreferenceSetAttribute)>("cublasLtMatmulPreferenceSetAttribute");
  return call(preference, attribute, value, size);
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t size, size_t* written) {
  static const auto call =
      find<decltype(cublasLtMatmulAlgoConfigGetAttribute)>("cublasLtMatmulAlgoConfigGetAttribute");
  return call(algorithm, attribute, value, size, written);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t library,
                                              cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t found[], int* count) {
  static const auto call =
      find<decltype(cublasLtMatmulAlgoGetHeuristic)>("cublasLtMatmulAlgoGetHeuristic");
  return call(library, operation, a, b, c, out, preference, most, found, count);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t library, cublasLtMatmulDesc_t operation,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t layout_a,
                              const void* b, cublasLtMatrixLayout_t layout_b, const void* beta,
                              const void* c, cublasLtMatrixLayout_t layout_c, void* out,
                              cublasLtMatrixLayout_t layout_out,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_size, cudaStream_t stream) {
  static const auto call = find<decltype(cublasLtMatmul)>("cublasLtMatmul");
  return call(library, operation, alpha, a, layout_a, b, layout_b, beta, c, layout_c, out,
              layout_out, algorithm, workspace, workspace_size, stream);
}
