#include "cublaslt.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda_shim/control.h"
#include "cuda_shim/work.h"
#include "machine.h"

namespace {

using namespace cuda_shim::lt;
using cuda_shim::Lock;
using cuda_shim::machine;

// Key of queued products: epilogue and reduction.
struct Queued {
  std::mutex mutex;
  std::map<std::pair<uint32_t, uint32_t>, int64_t> count;
  int32_t last = -1;  // its algorithm's place in the list
  int64_t misaligned = 0;
};
Queued& queued_products() {
  static Queued queued;
  return queued;
}

uint32_t alignment(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  return static_cast<uint32_t>(std::min<uintptr_t>(256, address & -address));
}

// True if the address or the leading dimension is misaligned.
bool is_misaligned(const Layout& layout, const void* p) {
  constexpr int64_t kBytes = 16;
  return alignment(p) < kBytes || bytes(layout.type, layout.ld) % kBytes != 0;
}
bool has_misaligned_matrix(const Work& work) {
  return is_misaligned(work.call.a, work.a) || is_misaligned(work.call.b, work.b) ||
         is_misaligned(work.call.d, work.d);
}

uint64_t fingerprint(const Call& call) {
  uint64_t hash = 14695981039346656037u;
  const auto mix = [&hash](uint64_t value) { hash = (hash ^ value) * 1099511628211u; };
  for (const Layout* l : {&call.a, &call.b, &call.c, &call.d}) {
    for (const uint64_t value : {uint64_t{l->type}, l->rows, l->cols, static_cast<uint64_t>(l->ld),
                                 static_cast<uint64_t>(l->batch), static_cast<uint64_t>(l->offset)})
      mix(value);
  }
  mix(static_cast<uint64_t>(call.operation.transpose_a));
  mix(static_cast<uint64_t>(call.operation.transpose_b));
  mix(call.operation.epilogue);
  mix(static_cast<uint64_t>(call.operation.a_mode));
  mix(static_cast<uint64_t>(call.operation.b_mode));
  mix(static_cast<uint64_t>(call.operation.pointer_mode));
  mix(static_cast<uint64_t>(call.operation.aux_ld));
  return hash;
}

// Which scales a GPU's tensor cores multiply by, and together (cuBLAS 13 documentation, section
// 3.1.4).
bool supported_scales(const Call& call) {
  const Product& o = call.operation;
  const Lock lock(machine().mutex);
  const int64_t capability = machine().settings.capability;
  const bool fp4 = call.a.type == CUDA_R_4F_E2M1;
  if (fp4 != (call.b.type == CUDA_R_4F_E2M1)) return false;
  const auto squares = [](int32_t mode) {
    return mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  };
  switch (o.a_mode) {
    case CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F:
      return !fp4 && o.b_mode == o.a_mode && capability >= 89;
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3:
      return fp4 && o.b_mode == o.a_mode && capability >= 100;
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0:
      return !fp4 && o.b_mode == o.a_mode && capability >= 100;
    default:
      return !fp4 && scaled_elements(o.a_mode) == 128 && scaled_elements(o.b_mode) == 128 &&
             !(squares(o.a_mode) && squares(o.b_mode)) && capability == 90;
  }
}

// Products of 8- and 4-bit floats: both operands along K, sizes and leading dimensions of 16 bytes,
// a plain epilogue or a bias.
bool supported_narrow(const Call& call) {
  const auto whole = [](const Layout& l) {
    const int64_t step = l.type == CUDA_R_4F_E2M1 ? 32 : 16, rows = static_cast<int64_t>(l.rows);
    return rows % step == 0 && l.cols % 16 == 0 && l.ld % step == 0;
  };
  const Product& o = call.operation;
  const bool two_of_range = call.a.type == CUDA_R_8F_E5M2 && call.b.type == CUDA_R_8F_E5M2;
  return is_narrow(call.b.type) && supported_scales(call) && !two_of_range &&
         call.d.type == call.c.type && !is_narrow(call.d.type) && o.transpose_a == CUBLAS_OP_T &&
         o.transpose_b == CUBLAS_OP_N &&
         (o.epilogue == CUBLASLT_EPILOGUE_DEFAULT ||
          (o.epilogue == CUBLASLT_EPILOGUE_BIAS && call.d.type != CUDA_R_32F)) &&
         whole(call.a) && whole(call.b) && whole(call.d);
}

bool supported_types(const Call& call) {
  const cudaDataType in = call.a.type, out = call.d.type;
  if (is_narrow(in)) return call.operation.compute == CUBLAS_COMPUTE_32F && supported_narrow(call);
  if (call.operation.a_mode != 0 || call.operation.b_mode != 0) return false;
  if (call.operation.a_scale != nullptr || call.operation.b_scale != nullptr) return false;
  if (call.operation.compute != CUBLAS_COMPUTE_32F || call.operation.scale != CUDA_R_32F)
    return false;
  if (call.b.type != in || call.c.type != out) return false;
  if (in == CUDA_R_32F) return out == CUDA_R_32F;
  return (in == CUDA_R_16BF || in == CUDA_R_16F) && (out == in || out == CUDA_R_32F);
}

cublasStatus_t examine_epilogue(const Call& call) {
  const Product& o = call.operation;
  if (has_aux(o)) {
    if (o.aux == nullptr || o.aux_ld < static_cast<int64_t>(call.d.rows) || o.aux_ld % 8 != 0)
      return CUBLAS_STATUS_INVALID_VALUE;
    if (alignment(o.aux) < 16) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const bool plain = o.epilogue == CUBLASLT_EPILOGUE_DEFAULT;
  if (!plain && !has_bias(o) && !has_aux(o) && !applies_gelu(o)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!plain && o.epilogue != CUBLASLT_EPILOGUE_BIAS && call.d.batch > 1)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!has_bias(o)) return CUBLAS_STATUS_SUCCESS;
  if (o.bias == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  const bool own = o.bias_type == -1 || o.bias_type == static_cast<int32_t>(call.d.type);
  return own ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t examine(const Call& call) {
  for (const Layout* l : {&call.a, &call.b, &call.c, &call.d}) {
    if (l->rows == 0 || l->cols == 0 || l->ld < static_cast<int64_t>(l->rows))
      return CUBLAS_STATUS_INVALID_VALUE;
    if (l->batch < 1 || l->batch != call.a.batch) return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool ta = call.operation.transpose_a != CUBLAS_OP_N;
  const bool tb = call.operation.transpose_b != CUBLAS_OP_N;
  const uint64_t m = ta ? call.a.cols : call.a.rows, k = ta ? call.a.rows : call.a.cols;
  const uint64_t n = tb ? call.b.rows : call.b.cols, kb = tb ? call.b.cols : call.b.rows;
  if (kb != k || call.d.rows != m || call.d.cols != n || call.c.rows != m || call.c.cols != n)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (call.d.batch > 1 && call.d.offset == 0) return CUBLAS_STATUS_INVALID_VALUE;
  if (!supported_types(call)) return CUBLAS_STATUS_NOT_SUPPORTED;
  return examine_epilogue(call);
}

bool on_device(const void* p, const Layout& l) {
  const int64_t last = (l.batch - 1) * l.offset + (static_cast<int64_t>(l.cols) - 1) * l.ld +
                       static_cast<int64_t>(l.rows) - 1;
  return cuda_shim::is_device_memory(p, static_cast<size_t>(bytes(l.type, last + 1)));
}

// An operand's scales; their columns are along K.
bool has_scales(const void* scales, int32_t mode, const Layout& l) {
  if (scaled_elements(mode) == 0 && scales == nullptr) return true;
  const auto depth = static_cast<int64_t>(l.rows), places = static_cast<int64_t>(l.cols);
  return (scaled_elements(mode) == 0 || alignment(scales) >= 16) &&
         cuda_shim::is_device_memory(scales, static_cast<size_t>(scale_bytes(mode, depth, places)));
}

// Reports a call that cuBLASLt refuses, or accepts and computes wrongly.
cublasStatus_t refuse(cublasStatus_t status, const char* why) {
  cuda_shim::problem(fmt::format("cuBLASLt: {}", why));
  return status;
}

cublasStatus_t examine_memory(const Work& work, size_t workspace_bytes) {
  const Algorithm& way = work.algorithm;
  if (way.call != fingerprint(work.call))
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "an algorithm of another product");
  // The documentation requires 16 bytes; the kernels for Hopper need at least 256.
  if (way.workspace > workspace_bytes || alignment(work.workspace) < 256 ||
      !cuda_shim::is_device_memory(work.workspace, workspace_bytes))
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "a workspace that is too small or misplaced");
  const std::array<const void*, 4> pointers{work.a, work.b, work.c, work.d};
  const std::array<const Layout*, 4> layouts{&work.call.a, &work.call.b, &work.call.c,
                                             &work.call.d};
  for (size_t i = 0; i < pointers.size(); ++i) {
    if (alignment(pointers[i]) < way.alignment[i])
      return refuse(CUBLAS_STATUS_INVALID_VALUE, "a matrix aligned to less than was promised");
    if (!on_device(pointers[i], *layouts[i]))
      return refuse(CUBLAS_STATUS_INVALID_VALUE, "a matrix that is not memory of the device");
  }
  const Product& o = work.call.operation;
  const bool reads_scales = o.pointer_mode == CUBLASLT_POINTER_MODE_DEVICE;
  if (!has_scales(o.a_scale, o.a_mode, work.call.a) ||
      !has_scales(o.b_scale, o.b_mode, work.call.b))
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "scales that are not aligned memory of the device");
  for (const void* number :
       {reads_scales ? work.alpha : nullptr, reads_scales ? work.beta : nullptr})
    if (number != nullptr && !cuda_shim::is_device_memory(number, sizeof(float)))
      return refuse(CUBLAS_STATUS_INVALID_VALUE, "a factor that is not memory of the device");
  if (has_aux(o)) {
    const Layout& d = work.call.d;
    if (alignment(o.aux) < way.aux_alignment)
      return refuse(CUBLAS_STATUS_INVALID_VALUE, "an aux aligned to less than was promised");
    if (!on_device(o.aux, {d.type, d.rows, d.cols, o.aux_ld}))
      return refuse(CUBLAS_STATUS_INVALID_VALUE, "an aux that is not memory of the device");
  }
  if (work.bias == nullptr) return CUBLAS_STATUS_SUCCESS;
  if (alignment(work.bias) < way.bias_alignment)
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "a bias aligned to less than was promised");
  const size_t bias_length = sums_b(o) ? work.call.d.cols : work.call.d.rows;
  const auto bias_bytes =
      static_cast<size_t>(bytes(work.call.d.type, static_cast<int64_t>(bias_length)));
  if (!cuda_shim::is_device_memory(work.bias, bias_bytes))
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "a bias that is not memory of the device");
  return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t take(T& to, const void* from, size_t size) {
  if (from == nullptr || size != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, size);
  return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t give(const T& from, void* to, size_t size, size_t* written) {
  if (to == nullptr || size != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(to, &from, size);
  if (written != nullptr) *written = size;
  return CUBLAS_STATUS_SUCCESS;
}

template <class T, class... Values>
cublasStatus_t make(T** made, const Values&... values) {
  if (made == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *made = new T{values...};
  return CUBLAS_STATUS_SUCCESS;
}

uint16_t promised(bool there, const void* p) {
  return static_cast<uint16_t>(there ? alignment(p) : 1);
}

// The library's algorithms, best first. If rows and columns are few, sums over parts of K come
// first.
std::vector<Algorithm> ways(const Call& call, const cublasLtMatmulPreferenceOpaque_t& preference) {
  const bool ta = call.operation.transpose_a != CUBLAS_OP_N;
  const uint64_t k = ta ? call.a.rows : call.a.cols;
  const uint64_t sums = call.d.rows * call.d.cols * static_cast<uint64_t>(call.d.batch) * 4;
  Algorithm way{.call = fingerprint(call),
                .workspace = 0,
                .parts = 1,
                .scheme = CUBLASLT_REDUCTION_SCHEME_NONE,
                .alignment = preference.alignment,
                .bias_alignment = promised(has_bias(call.operation), call.operation.bias),
                .aux_alignment = promised(has_aux(call.operation), call.operation.aux),
                .place = 0};
  std::vector<Algorithm> list;
  const auto add = [&](int32_t parts, uint32_t scheme, uint64_t workspace) {
    if (scheme != 0 && (preference.schemes & scheme) == 0) return;
    if (workspace > preference.workspace) return;
    way.parts = parts;
    way.scheme = scheme;
    way.workspace = workspace;
    way.place = static_cast<int32_t>(list.size());
    list.push_back(way);
  };
  const bool deep = k > call.d.rows && k > call.d.cols;
  if (deep) {
    add(4, CUBLASLT_REDUCTION_SCHEME_INPLACE, 4096);
    add(2, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 2 * sums);
  }
  add(1, CUBLASLT_REDUCTION_SCHEME_NONE, 0);
  if (!deep && k > 1) add(2, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 2 * sums);
  add(1, CUBLASLT_REDUCTION_SCHEME_NONE, 0);  // other tiles, but the same bits
  return list;
}

cublasStatus_t planted_refusal(const Algorithm& way) {
  const Lock lock(machine().mutex);
  const cuda_shim::Settings& settings = machine().settings;
  return way.place < settings.refuse_algorithms ? static_cast<cublasStatus_t>(settings.refusal)
                                                : CUBLAS_STATUS_SUCCESS;
}

// If a test names the fastest algorithm, all others take a second longer by the device's clock.
void pretend_time(const Algorithm& way, int device) {
  const Lock lock(machine().mutex);
  const cuda_shim::Settings& settings = machine().settings;
  if (settings.fast_algorithm < 0) return;
  const int64_t fast = settings.fast_algorithm + device * settings.fast_algorithm_step;
  if (way.place != fast) machine().pretended[static_cast<size_t>(device)] += 1;
}

}  // namespace

extern "C" {

// Like the library, allocates some device memory for itself.
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  {
    const Lock lock(machine().mutex);
    if (!cuda_shim::has_some_left()) return CUBLAS_STATUS_ALLOC_FAILED;
  }
  return make(handle);
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "CUBLAS_STATUS_UNKNOWN";
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED: return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE: return "an unsupported value or parameter was passed";
    case CUBLAS_STATUS_ARCH_MISMATCH: return "the device lacks a feature that is required";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "the function failed to launch on the GPU";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "an internal operation failed";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "the functionality requested is not supported";
  }
  return "unknown";
}
size_t cublasLtGetVersion() {
  const Lock lock(machine().mutex);
  return static_cast<size_t>(machine().settings.cublaslt);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
  return make(layout, type, rows, cols, ld);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* from, size_t size) {
  if (layout == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return take(layout->batch, from, size);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return take(layout->offset, from, size);
    case CUBLASLT_MATRIX_LAYOUT_LD: return take(layout->ld, from, size);
    default: return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation,
                                        cublasComputeType_t compute, cudaDataType scale) {
  return make(operation, compute, scale);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete operation;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* from, size_t size) {
  if (operation == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return take(operation->transpose_a, from, size);
    case CUBLASLT_MATMUL_DESC_TRANSB: return take(operation->transpose_b, from, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return take(operation->epilogue, from, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return take(operation->bias, from, size);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return take(operation->bias_type, from, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return take(operation->aux, from, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return take(operation->aux_ld, from, size);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE: return take(operation->pointer_mode, from, size);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: return take(operation->a_scale, from, size);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: return take(operation->b_scale, from, size);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
      if (cublasLtGetVersion() < 120900) return CUBLAS_STATUS_INVALID_VALUE;
      return take(
          attribute == CUBLASLT_MATMUL_DESC_A_SCALE_MODE ? operation->a_mode : operation->b_mode,
          from, size);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return make(preference);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* from, size_t size) {
  if (preference == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return take(preference->workspace, from, size);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return take(preference->schemes, from, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return take(preference->alignment.at(
                      static_cast<size_t>(attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)),
                  from, size);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t library,
                                              cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* count) {
  if (library == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (operation == nullptr || a == nullptr || b == nullptr || c == nullptr || d == nullptr ||
      preference == nullptr || results == nullptr || count == nullptr || most < 1)
    return CUBLAS_STATUS_INVALID_VALUE;
  const Call call{*operation, *a, *b, *c, *d};
  if (const cublasStatus_t status = examine(call); status != CUBLAS_STATUS_SUCCESS) return status;
  const std::array<cudaDataType, 4> types{a->type, b->type, c->type, d->type};
  for (size_t i = 0; i < types.size(); ++i) {
    const uint32_t promised = preference->alignment[i];
    if (promised < bytes(types[i], 1) || (promised & (promised - 1)) != 0)
      return CUBLAS_STATUS_INVALID_VALUE;
  }
  *count = 0;
  for (const Algorithm& way : ways(call, *preference)) {
    if (*count == most) break;
    cublasLtMatmulHeuristicResult_t& result = results[(*count)++];
    result = {};
    std::memcpy(&result.algo, &way, sizeof(way));
    result.workspaceSize = way.workspace;
    result.wavesCount = 1;
  }
  return *count > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* to, size_t size, size_t* written) {
  if (algorithm == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  Algorithm way;
  std::memcpy(&way, algorithm, sizeof(way));
  switch (attribute) {
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM: return give(way.parts, to, size, written);
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME: return give(way.scheme, to, size, written);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t library, cublasLtMatmulDesc_t operation,
                              const void* alpha, const void* A, cublasLtMatrixLayout_t a,
                              const void* B, cublasLtMatrixLayout_t b, const void* beta,
                              const void* C, cublasLtMatrixLayout_t c, void* D,
                              cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algorithm,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  if (library == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (operation == nullptr || alpha == nullptr || beta == nullptr || a == nullptr || b == nullptr ||
      c == nullptr || d == nullptr || algorithm == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  Work work{.call = {*operation, *a, *b, *c, *d},
            .algorithm = {},
            .a = A,
            .b = B,
            .c = C,
            .bias = has_bias(*operation) ? operation->bias : nullptr,
            .d = D,
            .workspace = workspace,
            .alpha = nullptr,
            .beta = nullptr,
            .host_alpha = 1,
            .host_beta = 0,
            .backwards = false};
  if (operation->pointer_mode == CUBLASLT_POINTER_MODE_DEVICE) {
    work.alpha = alpha;
    work.beta = beta;
  } else {
    work.host_alpha = *static_cast<const float*>(alpha);
    work.host_beta = *static_cast<const float*>(beta);
  }
  if (const cublasStatus_t status = examine(work.call); status != CUBLAS_STATUS_SUCCESS)
    return refuse(status, "a product that it has not");
  Algorithm& way = work.algorithm;
  std::memcpy(&way, algorithm, sizeof(way));
  if (const cublasStatus_t status = examine_memory(work, workspace_bytes);
      status != CUBLAS_STATUS_SUCCESS)
    return status;
  if (const cublasStatus_t status = planted_refusal(way); status != CUBLAS_STATUS_SUCCESS)
    return status;
  if (way.scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE) {
    work.backwards = library->turn;
    library->turn = !library->turn;
  }
  const int device = cuda_shim::current_device();
  const cudaError_t queued = cuda_shim::enqueue(stream, "cublasLtMatmul", [work, device] {
    multiply(work);
    pretend_time(work.algorithm, device);
  });
  if (queued != cudaSuccess) return CUBLAS_STATUS_INVALID_VALUE;
  const std::lock_guard lock(queued_products().mutex);
  ++queued_products().count[{operation->epilogue, way.scheme}];
  queued_products().last = way.place;
  if (has_misaligned_matrix(work)) ++queued_products().misaligned;
  return CUBLAS_STATUS_SUCCESS;
}

int64_t shim_misaligned_products() {
  const std::lock_guard lock(queued_products().mutex);
  return queued_products().misaligned;
}

int64_t shim_products(uint32_t epilogue, uint32_t reduction) {
  const std::lock_guard lock(queued_products().mutex);
  return queued_products().count[{epilogue, reduction}];
}

int64_t shim_last_algorithm() {
  const std::lock_guard lock(queued_products().mutex);
  return queued_products().last;
}

}  // extern "C"
