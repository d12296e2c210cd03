#include "kernels/cuda/products/product_plans.h"

#include <array>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "device/cuda/out_of_memory.h"
#include "device/cuda/stream.h"
#include "kernels/cuda/numbers.h"
#include "kernels/cuda/products/tuning.h"
#include "kernels/cuda_scratch/gemm.h"

namespace megatron::kernels::cuda {
namespace {

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const std::string text =
      fmt::format("CUDA: {} failed: {} ({})", call, cublasLtGetStatusName(status),
                  cublasLtGetStatusString(status));
  if (status == CUBLAS_STATUS_ALLOC_FAILED) megatron::cuda::fail_for_memory(text);
  fail("{}", text);
}

const auto kE2m1 = static_cast<cudaDataType_t>(33);  // CUDA_R_4F_E2M1, of CUDA 12.8 and later

cudaDataType_t type_of(DType type, LowFormat format = LowFormat::e4m3) {
  switch (type) {
    case DType::u8:
      if (format == LowFormat::e2m1) return kE2m1;
      return format == LowFormat::e5m2 ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3;
    case DType::f32: return CUDA_R_32F;
    case DType::bf16: return CUDA_R_16BF;
    case DType::f16: return CUDA_R_16F;
    default: refuse_type("gemm", type);
  }
}

// A row-major matrix [rows, columns] is column-major [columns, rows].
Layout make_layout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t row, int64_t batch,
                   int64_t matrix) {
  cublasLtMatrixLayout_t made = nullptr;
  check(cublasLtMatrixLayoutCreate(&made, type, static_cast<uint64_t>(columns),
                                   static_cast<uint64_t>(rows), row),
        "cublasLtMatrixLayoutCreate");
  Layout layout(made);
  if (batch == 1) return layout;
  const auto count = static_cast<int32_t>(batch);
  check(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                         sizeof(count)),
        "cublasLtMatrixLayoutSetAttribute(batch count)");
  check(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &matrix,
                                         sizeof(matrix)),
        "cublasLtMatrixLayoutSetAttribute(batch offset)");
  return layout;
}

template <class T>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)),
        "cublasLtMatmulDescSetAttribute");
}
template <class T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const T& value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
        "cublasLtMatmulPreferenceSetAttribute");
}

// Epilogue of the transposed product, whose columns are our rows: a bias gradient is summed over
// cuBLASLt's operand B.
cublasLtEpilogue_t epilogue_of(const Product& p) {
  if (p.bias_gradient) return CUBLASLT_EPILOGUE_BGRADB;
  switch (p.epilogue) {
    case Epilogue::none: return p.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::gelu:
      if (p.aux) return p.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
      return p.bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    case Epilogue::gelu_gradient: return CUBLASLT_EPILOGUE_DGELU;
  }
  MG_ASSERT(false);
}

// Algorithms are chosen for this alignment of the pointers; each call then sets its own pointer.
void describe_epilogue(const Product& p, cublasLtMatmulDesc_t operation) {
  const void* const aligned = reinterpret_cast<const void*>(uintptr_t{16});
  set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(epilogue_of(p)));
  if (p.bias || p.bias_gradient) {
    const DType type = p.bias_gradient ? DType::f32 : p.out;
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(type_of(type)));
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, aligned);
  }
  if (!p.aux) return;
  set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.n);
  set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aligned);
}

// Products of codes without scales of blocks have a factor for each operand; others have one as
// alpha.
bool has_factors(const Product& p) {
  return p.scaled && p.in == DType::u8 && p.a_layout == ScaleLayout::tensor;
}
bool takes_device_alpha(const Product& p) { return p.scaled && !has_factors(p); }

// cuBLASLt's numbers of names that its headers have from version 12.9 on: the modes of scales
// VEC16_UE4M3, VEC32_UE8M0, VEC128_32F and BLK128x128_32F, and where they are set.
const auto kScaleModeOfA = static_cast<cublasLtMatmulDescAttributes_t>(31),
           kScaleModeOfB = static_cast<cublasLtMatmulDescAttributes_t>(32);
int32_t mode_of(ScaleLayout layout) {
  switch (layout) {
    case ScaleLayout::tensor: break;
    case ScaleLayout::vectors_128: return 4;
    case ScaleLayout::squares_128: return 5;
    case ScaleLayout::mx_32: return 2;
    case ScaleLayout::nv_16: return 1;
  }
  return 0;
}

// Returns false if this version of the library does not know the operands' scales. Algorithms are
// chosen for aligned pointers to scales; each call then sets its own.
bool describe_scales(const Product& p, cublasLtMatmulDesc_t operation) {
  if (p.a_layout == ScaleLayout::tensor) return true;
  const auto set_mode = [&](cublasLtMatmulDescAttributes_t attribute, ScaleLayout layout) {
    const int32_t mode = mode_of(layout);
    return cublasLtMatmulDescSetAttribute(operation, attribute, &mode, sizeof(mode)) ==
           CUBLAS_STATUS_SUCCESS;
  };
  if (!set_mode(kScaleModeOfA, p.b_layout) || !set_mode(kScaleModeOfB, p.a_layout)) return false;
  const void* const aligned = reinterpret_cast<const void*>(uintptr_t{16});
  set(operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, aligned);
  set(operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, aligned);
  return true;
}

// out^T = op(b)^T op(a)^T.
ProductPlan describe(const Product& p) {
  ProductPlan plan;
  cublasLtMatmulDesc_t operation = nullptr;
  check(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  plan.operation.reset(operation);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA,
      static_cast<int32_t>(p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N));
  set(operation, CUBLASLT_MATMUL_DESC_TRANSB,
      static_cast<int32_t>(p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N));
  describe_epilogue(p, operation);
  if (takes_device_alpha(p))
    set(operation, CUBLASLT_MATMUL_DESC_POINTER_MODE,
        static_cast<int32_t>(CUBLASLT_POINTER_MODE_DEVICE));
  const cudaDataType_t a = type_of(p.in, p.a_format), b = type_of(p.in, p.b_format);
  plan.a = p.transpose_b ? make_layout(b, p.n, p.k, p.row_b, p.batch, p.batch_b)
                         : make_layout(b, p.k, p.n, p.row_b, p.batch, p.batch_b);
  plan.b = p.transpose_a ? make_layout(a, p.k, p.m, p.row_a, p.batch, p.batch_a)
                         : make_layout(a, p.m, p.k, p.row_a, p.batch, p.batch_a);
  plan.out = make_layout(type_of(p.out), p.m, p.n, p.row_out, p.batch, p.batch_out);
  return plan;
}

// Excludes reductions in out's type, which round twice. In-place reductions depend on the order of
// blocks.
constexpr uint32_t kReductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
                   kAnyOrder = kReductions | CUBLASLT_REDUCTION_SCHEME_INPLACE;

Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference_of(const Product& p) {
  cublasLtMatmulPreference_t made = nullptr;
  check(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
  Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference(made);
  set(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(p.workspace));
  set(made, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, p.any_order ? kAnyOrder : kReductions);
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.align_b);
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.align_a);
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.align_out);
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.align_out);
  return preference;
}

bool deterministic(const cublasLtMatmulAlgo_t& algorithm) {
  int32_t parts = 0;
  uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
  size_t written = 0;
  const bool known =
      cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts,
                                           sizeof(parts), &written) == CUBLAS_STATUS_SUCCESS &&
      cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                           &scheme, sizeof(scheme),
                                           &written) == CUBLAS_STATUS_SUCCESS;
  // An algorithm without these settings; the preference mask has restricted it.
  if (!known) return true;
  if (scheme == CUBLASLT_REDUCTION_SCHEME_NONE) return parts <= 1;
  return scheme == kReductions;
}

std::string_view text_of_epilogue(const Product& p) {
  if (p.bias_gradient) return " with the gradient of a bias";
  switch (p.epilogue) {
    case Epilogue::none: return p.bias ? " with a bias" : "";
    case Epilogue::gelu: return p.bias ? " with a bias and gelu" : " with gelu";
    case Epilogue::gelu_gradient: return " with the gradient of gelu";
  }
  MG_ASSERT(false);
}

std::string text_of_operands(const Product& p) {
  if (p.in != DType::u8) return std::string(name(p.in));
  const auto format = [](LowFormat f) {
    constexpr std::string_view kNames[] = {"e4m3", "e5m2", "e2m1"};
    return kNames[static_cast<size_t>(f)];
  };
  const auto block = [](ScaleLayout layout) {
    constexpr std::string_view kBlocks[] = {"", "128", "128 x 128", "32", "16"};
    return kBlocks[static_cast<size_t>(layout)];
  };
  const std::string formats = fmt::format("{} and {}", format(p.a_format), format(p.b_format));
  if (p.a_layout == ScaleLayout::tensor) return formats;
  return fmt::format("{} with scales of {} and {} elements", formats, block(p.a_layout),
                     block(p.b_layout));
}

std::string text_of(const Product& p) {
  return fmt::format("{} {} of op(a) [{},{}] and op(b) [{},{}], {} to {}{}", p.batch,
                     p.batch == 1 ? "product" : "products", p.m, p.k, p.k, p.n, text_of_operands(p),
                     name(p.out), text_of_epilogue(p));
}

// Returns an empty list if the library has no algorithm.
std::vector<cublasLtMatmulAlgo_t> find_algorithms(cublasLtHandle_t library, const Product& p,
                                                  const ProductPlan& plan) {
  constexpr int kMax = 16;
  if (!describe_scales(p, plan.operation.get())) return {};
  const auto preference = preference_of(p);
  std::array<cublasLtMatmulHeuristicResult_t, kMax> found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      library, plan.operation.get(), plan.a.get(), plan.b.get(), plan.out.get(), plan.out.get(),
      preference.get(), kMax, found.data(), &count);
  // Versions of cuBLASLt refuse an unsupported epilogue or type with one of these two statuses.
  const bool unknown = (epilogue_of(p) != CUBLASLT_EPILOGUE_DEFAULT || p.in == DType::u8) &&
                       status == CUBLAS_STATUS_INVALID_VALUE;
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || unknown) return {};
  check(status, "cublasLtMatmulAlgoGetHeuristic");
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < count; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = found[static_cast<size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS &&
        result.workspaceSize <= static_cast<size_t>(p.workspace) &&
        (p.any_order || deterministic(result.algo)))
      algorithms.push_back(result.algo);
  }
  return algorithms;
}

// True if the status means that this algorithm cannot compute the product, not that the library or
// the device failed. Nothing is queued then.
bool refuses_algorithm(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
         status == CUBLAS_STATUS_ARCH_MISMATCH;
}

// Everything that determines a plan, as a key that is the same in every run.
std::string key_of(const Product& p) {
  std::string key = fmt::format(
      "{} to {}: {} x [{},{},{}]{}{}, rows {} {} {}, matrices {} {} {}, aligned {} {} {}, "
      "workspace {}",
      text_of_operands(p), name(p.out), p.batch, p.m, p.n, p.k,
      p.transpose_a ? ", a transposed" : "", p.transpose_b ? ", b transposed" : "", p.row_a,
      p.row_b, p.row_out, p.batch_a, p.batch_b, p.batch_out, p.align_a, p.align_b, p.align_out,
      p.workspace);
  key += text_of_epilogue(p);
  if (p.aux) key += ", aux";
  if (p.accumulate) key += ", added";
  if (p.scaled) key += ", scaled";
  if (p.any_order) key += ", any order of sums";
  return key;
}

bool contiguous(const Product& p) {
  return (p.m == 1 || p.row_out == p.n) && (p.batch == 1 || p.batch_out == p.m * p.n);
}

std::vector<uint64_t> words_of(const cublasLtMatmulAlgo_t& algorithm) {
  std::vector<uint64_t> words(sizeof(algorithm) / sizeof(uint64_t));
  std::memcpy(words.data(), &algorithm, sizeof(algorithm));
  return words;
}

std::string text_of(cublasStatus_t status) {
  return fmt::format("{} ({})", cublasLtGetStatusName(status), cublasLtGetStatusString(status));
}

}  // namespace

ProductPlans& ProductPlans::of(Stream& stream) {
  static constexpr char kKey = 0;
  megatron::cuda::CudaStream& cuda = megatron::cuda::cuda_stream(stream);
  cuda.handle();  // creates the library handle for the thread's device
  std::shared_ptr<void>& state = cuda.state(&kKey);
  if (state == nullptr) state = std::make_shared<ProductPlans>(cuda);
  return *static_cast<ProductPlans*>(state.get());
}

ProductPlans::ProductPlans(megatron::cuda::CudaStream& stream) : stream_(stream) {
  cublasLtHandle_t library = nullptr;
  check(cublasLtCreate(&library), "cublasLtCreate");
  library_.reset(library);
}

ProductPlan* ProductPlans::find(const Product& product, const ProductPointers& pointers) {
  if (const auto known = plans_.find(product); known != plans_.end()) return known->second.get();
  auto plan = std::make_unique<ProductPlan>(describe(product));
  plan->algorithms = find_algorithms(library_.get(), product, *plan);
  plan->named = static_cast<int>(plan->algorithms.size());
  if (plan->named == 0) {
    plan.reset();
    if (product.in == DType::u8)
      log::warning(
          "cuBLASLt {} has no {}algorithm for {}; the GEMM runs without tensor cores, much slower "
          "than in bf16",
          cublasLtGetVersion(), product.any_order ? "" : "deterministic ", text_of(product));
  }
  if (plan != nullptr && !choose_given(product, *plan) && times_)
    choose_fastest(product, *plan, pointers);
  return plans_.emplace(product, std::move(plan)).first->second.get();
}

void ProductPlans::choose_fastest(const Product& product, ProductPlan& plan,
                                  const ProductPointers& pointers) {
  if (plan.algorithms.size() < 2 || stream_.recording()) return;
  std::optional<HostCopy> before;
  if (product.accumulate) {
    if (!contiguous(product)) return;
    const int64_t elements = product.batch * product.m * product.n;
    before.emplace(pointers.out, static_cast<size_t>(elements * size_of(product.out)), stream_);
  }
  plan.chosen = fastest(
      plan.algorithms,
      [&](const cublasLtMatmulAlgo_t& algorithm) {
        const cublasStatus_t status = call(product, plan, algorithm, pointers);
        if (!refuses_algorithm(status))
          check(status, ("cublasLtMatmul of " + text_of(product)).c_str());
        return status == CUBLAS_STATUS_SUCCESS;
      },
      stream_);
  if (before) before->restore();
}

// Returns true if there was a given choice and it could be used.
bool ProductPlans::choose_given(const Product& product, ProductPlan& plan) const {
  const auto given = given_.find(key_of(product));
  if (given == given_.end()) return false;
  for (size_t i = 0; i < plan.algorithms.size(); ++i) {
    if (words_of(plan.algorithms[i]) != given->second) continue;
    plan.chosen = i;
    return true;
  }
  log::warning(
      "cuBLASLt {} does not propose the algorithm that was saved for {}: another one is used, and "
      "results may differ in the last bits from those of an uninterrupted run",
      cublasLtGetVersion(), text_of(product));
  return false;
}

void ProductPlans::use(std::vector<GemmChoice> choices) {
  times_ = false;
  given_.clear();
  for (GemmChoice& choice : choices)
    given_.insert_or_assign(std::move(choice.product), std::move(choice.algorithm));
  for (const auto& [product, plan] : plans_) {
    if (plan == nullptr) continue;
    plan->chosen = 0;
    choose_given(product, *plan);
  }
}

std::vector<GemmChoice> ProductPlans::choices() const {
  std::map<std::string, std::vector<uint64_t>> all;
  for (const auto& [product, plan] : plans_)
    if (plan != nullptr)
      all.insert_or_assign(key_of(product), words_of(plan->algorithms[plan->chosen]));
  std::vector<GemmChoice> list;
  for (auto& [product, algorithm] : all) list.push_back({product, std::move(algorithm)});
  return list;
}

std::string ProductPlans::library() const {
  return fmt::format("cuBLASLt {}", cublasLtGetVersion());
}

cublasStatus_t ProductPlans::call(const Product& product, const ProductPlan& plan,
                                  const cublasLtMatmulAlgo_t& algorithm,
                                  const ProductPointers& pointers) const {
  const float one = 1, zero_or_one = product.accumulate ? 1 : 0;
  const float *alpha = &one, *beta = &zero_or_one;
  cublasLtMatmulDesc_t const operation = plan.operation.get();
  if (takes_device_alpha(product)) {
    alpha = pointers.factors + kAlpha;
    beta = pointers.factors + kBeta;
  } else if (has_factors(product)) {
    set(operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
        static_cast<const void*>(pointers.factors + kInverseB));
    set(operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
        static_cast<const void*>(pointers.factors + kInverseA));
  }
  if (pointers.a_scales != nullptr) {
    set(operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, pointers.b_scales);
    set(operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, pointers.a_scales);
  }
  if (pointers.bias != nullptr) set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, pointers.bias);
  if (pointers.aux != nullptr)
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, pointers.aux);
  return cublasLtMatmul(library_.get(), operation, alpha, pointers.b, plan.a.get(), pointers.a,
                        plan.b.get(), beta, pointers.out, plan.out.get(), pointers.out,
                        plan.out.get(), &algorithm, pointers.workspace,
                        static_cast<size_t>(product.workspace), stream_.handle());
}

cublasStatus_t ProductPlans::queue(const Product& product, ProductPlan& plan,
                                   const ProductPointers& pointers) {
  cublasStatus_t refused = CUBLAS_STATUS_SUCCESS;
  while (!plan.algorithms.empty()) {
    const cublasStatus_t status = call(product, plan, plan.algorithms[plan.chosen], pointers);
    if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
      break;
    if (!refuses_algorithm(status))
      check(status, ("cublasLtMatmul of " + text_of(product)).c_str());
    refused = status;
    plan.algorithms.erase(plan.algorithms.begin() + static_cast<std::ptrdiff_t>(plan.chosen));
    plan.chosen = 0;
  }
  if (refused == CUBLAS_STATUS_SUCCESS) [[likely]]
    return CUBLAS_STATUS_SUCCESS;
  if (plan.algorithms.empty()) return refused;
  log::warning(
      "cuBLASLt {} rejected {} of the {} algorithms it proposed for {}: {}; the next one is used",
      cublasLtGetVersion(), plan.named - static_cast<int>(plan.algorithms.size()), plan.named,
      text_of(product), text_of(refused));
  return CUBLAS_STATUS_SUCCESS;
}

void ProductPlans::run(const Product& product, const ProductPointers& pointers) {
  ProductPlan* const plan = find(product, pointers);
  const char* const kind = product.any_order ? "" : "deterministic ";
  MG_CHECK(plan != nullptr,
           "CUDA: cuBLASLt {} has no {}algorithm for {}; sizes that are multiples of 8, or another "
           "version of cuBLASLt, may have one",
           cublasLtGetVersion(), kind, text_of(product));
  const cublasStatus_t status = queue(product, *plan, pointers);
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  const int named = plan->named;
  plans_.erase(product);  // a later call gets the error again
  fail(
      "CUDA: cuBLASLt {} proposed {} {}algorithms for {} and rejected all of them, the last one "
      "with {}; another version of cuBLASLt may have one",
      cublasLtGetVersion(), named, kind, text_of(product), text_of(status));
}

bool ProductPlans::run_if_there(const Product& product, const ProductPointers& pointers) {
  ProductPlan* const plan = find(product, pointers);
  if (plan == nullptr) return false;
  const cublasStatus_t status = queue(product, *plan, pointers);
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return true;
  log::warning(
      "cuBLASLt {} proposed {} algorithms for {} and rejected all of them, the last one with {}; "
      "the GEMM runs {}",
      cublasLtGetVersion(), plan->named, text_of(product), text_of(status),
      product.in == DType::u8 ? "without tensor cores" : "without the fused epilogue");
  plans_[product].reset();
  return false;
}

}  // namespace megatron::kernels::cuda

extern "C" __attribute__((visibility("default"))) megatron::kernels::GemmTuning*
megatron_cuda_gemm_tuning(megatron::Stream& stream) {
  return &megatron::kernels::cuda::ProductPlans::of(stream);
}
