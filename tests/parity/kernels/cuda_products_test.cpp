// Which products CUDA passes to cuBLASLt with an epilogue, which orders of sums are allowed, and
// what happens after a refused algorithm. The Cases check the results.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "device/cuda_plugin.h"
#include "kernels/gemm_tuning.h"
#include "kernels/table.h"

namespace megatron::kernels {
namespace {

// Values from cuBLASLt.
enum LibraryEpilogue : uint32_t {
  kDefault = 1,
  kBias = 4,
  kGelu = 32,
  kGeluBias = 36,
  kGeluAux = 160,
  kGeluAuxBias = 164,
  kGeluGradient = 192,
  kBiasGradientOfB = 512,
};
enum Reduction : uint32_t { kWhole = 0, kInPlace = 1, kInOrder = 2 };
enum Status { kInvalidValue = 7, kArchMismatch = 8, kExecutionFailed = 13, kNotSupported = 15 };

class CudaProducts : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(cuda_state().plugin, nullptr) << cuda_state().why_not;
    if (cuda_plugin().devices().front().name != "CUDA shim on the CPU")
      GTEST_SKIP() << "cuBLASLt does not tell what it was asked";
  }
  void TearDown() override {
    set("refuse_algorithms", 0);
    set("refusal", kNotSupported);
  }
  static void set(const char* name, int64_t value) {
    ASSERT_TRUE(
        reinterpret_cast<bool (*)(const char*, int64_t)>(cuda_symbol("shim_set"))(name, value));
  }
  static Tensor values(Arena& arena, Shape shape) {
    Tensor t = Tensor::empty(arena, shape, DType::f32, "values");
    std::vector<double> all(static_cast<size_t>(t.elements()));
    uint64_t state = 17;
    for (double& x : all) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      x = static_cast<double>(state >> 40) / (1 << 24) - 0.5;
    }
    copy_from(t, std::span<const double>(all));
    return t;
  }
  Tensor zeros(Shape shape, DType type) {
    Tensor t = Tensor::empty(runtime_.arena(MemoryClass::activations), shape, type, "test");
    table(DeviceKind::cuda).fill({.out = t, .value = 0}, runtime_.stream());
    return t;
  }
  // Number of products with an epilogue and a reduction that a call queues.
  int64_t queued(const GemmArgs& args, uint32_t epilogue, uint32_t reduction = kWhole) {
    auto* const count =
        reinterpret_cast<int64_t (*)(uint32_t, uint32_t)>(cuda_symbol("shim_products"));
    const int64_t before = count(epilogue, reduction);
    table(DeviceKind::cuda).gemm(args, runtime_.stream());
    runtime_.stream().synchronize();
    return count(epilogue, reduction) - before;
  }
  GemmArgs up(DType type, int64_t inner) {
    return {.a = zeros({16, 24}, type),
            .b = zeros({inner, 24}, type),
            .out = zeros({16, inner}, type),
            .transpose_b = true,
            .bias = zeros({inner}, type),
            .epilogue = megatron::kernels::Epilogue::gelu,
            .aux = zeros({16, inner}, type)};
  }
  GemmArgs weight_gradient(DType type, float beta) {
    return {.a = zeros({16, 24}, type),
            .b = zeros({16, 8}, type),
            .out = zeros({24, 8}, DType::f32),
            .transpose_a = true,
            .beta = beta,
            .bias_gradient = {zeros({24}, DType::f32), beta}};
  }

  Runtime runtime_{{DeviceKind::cuda}, 1};
};

TEST_F(CudaProducts, EpiloguesAreTheLibrarys) {
  for (const DType type : {DType::bf16, DType::f16}) {
    GemmArgs args = up(type, 40);
    EXPECT_EQ(queued(args, kGeluAuxBias), 1) << name(type);
    args.bias = {};
    EXPECT_EQ(queued(args, kGeluAux), 1) << name(type);
    args.aux = {};
    EXPECT_EQ(queued(args, kGelu), 1) << name(type);
    args.bias = zeros({40}, type);
    EXPECT_EQ(queued(args, kGeluBias), 1) << name(type);

    args = {.a = zeros({16, 24}, type),
            .b = zeros({24, 40}, type),
            .out = zeros({16, 40}, type),
            .epilogue = megatron::kernels::Epilogue::gelu_gradient,
            .aux = zeros({16, 40}, type)};
    EXPECT_EQ(queued(args, kGeluGradient), 1) << name(type);
    for (const float beta : {0.0f, 1.0f})
      EXPECT_EQ(queued(weight_gradient(type, beta), kBiasGradientOfB), 1) << name(type);
  }
}

TEST_F(CudaProducts, InFp32GeluIsOurOwn) {
  EXPECT_EQ(queued(up(DType::f32, 40), kBias), 1);
  for (const float beta : {0.0f, 1.0f})
    EXPECT_EQ(queued(weight_gradient(DType::f32, beta), kBiasGradientOfB), 1);
}

TEST_F(CudaProducts, WhatTheLibraryRefusesIsMadeOfParts) {
  EXPECT_EQ(queued(up(DType::bf16, 37), kBias), 1) << "rows of aux that are no multiple of 8";
  GemmArgs args = up(DType::bf16, 40);
  args.aux = zeros({16 * 40 + 3}, DType::bf16).slice(0, 3, 16 * 40).view({16, 40});
  EXPECT_EQ(queued(args, kBias), 1) << "6 bytes behind a block";
  args = weight_gradient(DType::bf16, 0);
  args.out = zeros({24, 8}, DType::bf16);
  EXPECT_EQ(queued(args, kDefault), 1) << "a bias's gradient of another type than out";
  args = weight_gradient(DType::bf16, 0);
  args.bias = zeros({8}, DType::f32);
  EXPECT_EQ(queued(args, kBias), 1) << "a bias and the gradient of one";
}

TEST_F(CudaProducts, SumsComeInAnyOrderOnlyWhereThatIsAllowed) {
  const GemmArgs deep{.a = zeros({8, 512}, DType::bf16),
                      .b = zeros({512, 16}, DType::bf16),
                      .out = zeros({8, 16}, DType::bf16)};
  EXPECT_EQ(queued(deep, kDefault, kInOrder), 1);
  runtime_.stream().allow_nondeterministic(true);
  EXPECT_EQ(queued(deep, kDefault, kInPlace), 1);
  runtime_.stream().allow_nondeterministic(false);
  EXPECT_EQ(queued(deep, kDefault, kInOrder), 1) << "plans of the one are not those of the other";
}

// The library's products of codes, and this program's own where it has none, are equal but for the
// order of sums, with each layout of scales.
TEST_F(CudaProducts, OfCodesAreComputedWithoutTheLibraryToo) {
  using enum ScaleLayout;
  struct Scales {
    LowFormat format;
    ScaleLayout a, b;
    int64_t capability;
  };
  const Table& cuda = table(DeviceKind::cuda);
  const auto product = [&](const Scales& scales, int refused) {
    set("refuse_algorithms", refused);
    set("capability", scales.capability);
    Arena& arena = runtime_.arena(MemoryClass::activations);
    const Tensor scale = zeros({}, DType::f32);
    cuda.fill({.out = scale, .value = 40}, runtime_.stream());
    const auto operand = [&](int64_t rows, LowFormat format, ScaleLayout layout) {
      EncodeOperandArgs args{.x = zeros({rows, 160}, DType::bf16)};
      cuda.copy({.x = values(arena, {rows, 160}), .out = args.x}, runtime_.stream());
      args.out = {.format = format, .layout = layout};
      args.out.codes =
          zeros({rows, format == LowFormat::e2m1 ? int64_t{80} : int64_t{160}}, DType::u8);
      if (layout != tensor)
        args.out.scales = zeros(scales_shape(layout, rows, 160), scale_type(layout));
      if (has_tensor_scale(layout)) args.out.tensor_scale = scale;
      cuda.encode_operand(args, runtime_.stream());
      return args.out;
    };
    const LowFormat gradient = scales.format == LowFormat::e2m1 ? scales.format : LowFormat::e5m2;
    const CodedGemmArgs args{.a = operand(144, gradient, scales.a),
                             .b = operand(32, scales.format, scales.b),
                             .out = zeros({144, 32}, DType::f32)};
    testing::internal::CaptureStderr();
    cuda.coded_gemm(args, runtime_.stream());
    runtime_.stream().synchronize();
    const bool warned =
        testing::internal::GetCapturedStderr().find("without tensor cores") != std::string::npos;
    EXPECT_EQ(warned, refused > 0);
    return to_doubles(args.out);
  };
  for (const Scales& scales :
       {Scales{LowFormat::e4m3, tensor, tensor, 90},
        Scales{LowFormat::e4m3, vectors_128, squares_128, 90},
        Scales{LowFormat::e4m3, vectors_128, vectors_128, 90},
        Scales{LowFormat::e4m3, mx_32, mx_32, 100}, Scales{LowFormat::e2m1, nv_16, nv_16, 100}}) {
    const std::vector<double> library = product(scales, 0), own = product(scales, 100);
    double largest = 0, difference = 0;
    for (size_t i = 0; i < own.size(); ++i) {
      largest = std::max(largest, std::abs(library[i]));
      difference = std::max(difference, std::abs(own[i] - library[i]));
    }
    EXPECT_GT(largest, 1);
    EXPECT_LT(difference, 1e-5 * largest) << static_cast<int>(scales.a);
  }
  set("capability", 90);
}

// cuBLASLt before 12.9 does not know scales of blocks: this program's own kernel multiplies.
TEST_F(CudaProducts, OfCodesNeedNoScalesOfAnOlderLibrary) {
  set("cublaslt", 120500);
  const auto operand = [&](ScaleLayout layout) {
    CodedOperand made{.layout = layout, .codes = zeros({16, 16}, DType::u8)};
    made.scales = zeros(scales_shape(layout, 16, 16), DType::f32);
    return made;
  };
  testing::internal::CaptureStderr();
  table(DeviceKind::cuda)
      .coded_gemm({.a = operand(ScaleLayout::vectors_128),
                   .b = operand(ScaleLayout::squares_128),
                   .out = zeros({16, 16}, DType::f32)},
                  runtime_.stream());
  runtime_.stream().synchronize();
  EXPECT_NE(testing::internal::GetCapturedStderr().find("without tensor cores"), std::string::npos);
  set("cublaslt", 130100);
}

// For a deep product the stand-in proposes: parts added in place if any order is allowed, parts
// added in order, whole sums, and whole sums again.
class RefusedAlgorithms : public CudaProducts {
 protected:
  // Bits of a product of random numbers, computed on its own stream. Empty: an error, kept in
  // `error`.
  std::vector<double> product(int refused, bool any_order = false) {
    set("refuse_algorithms", refused);
    return multiply(runtime_, any_order);
  }
  std::vector<double> multiply(Runtime& runtime, bool any_order = false) {
    Arena& arena = runtime.arena(MemoryClass::activations);
    const GemmArgs args{.a = values(arena, {8, 512}),
                        .b = values(arena, {512, 16}),
                        .out = Tensor::empty(arena, {8, 16}, DType::f32, "out")};
    runtime.stream().allow_nondeterministic(any_order);
    error.clear();
    testing::internal::CaptureStderr();
    try {
      table(DeviceKind::cuda).gemm(args, runtime.stream());
      table(DeviceKind::cuda).gemm(args, runtime.stream());  // with the algorithm kept above
      runtime.stream().synchronize();
    } catch (const Error& e) {
      error = e.what();
    }
    said = testing::internal::GetCapturedStderr();
    return error.empty() ? to_doubles(args.out) : std::vector<double>{};
  }
  static int64_t lines(const std::string& text) { return std::ranges::count(text, '\n'); }

  std::string error, said;
};

TEST_F(RefusedAlgorithms, TheNextOneOfTheListComputes) {
  const std::vector<double> in_parts = product(0);
  EXPECT_EQ(said, "");
  Runtime other({DeviceKind::cuda}, 1);
  set("refuse_algorithms", 1);
  const std::vector<double> whole = multiply(other);
  EXPECT_EQ(error, "");
  EXPECT_NE(whole, in_parts) << "other bits: those of the algorithm that was taken";
  EXPECT_EQ(lines(said), 1) << said;
  EXPECT_NE(said.find("rejected 1 of the 3 algorithms it proposed for 1 product of op(a) [8,512] "
                      "and op(b) [512,16], f32 to f32: CUBLAS_STATUS_NOT_SUPPORTED"),
            std::string::npos)
      << said;
  set("refuse_algorithms", 0);
  EXPECT_EQ(multiply(other), whole) << "what worked once is kept";
  EXPECT_EQ(said, "");
  Runtime third({DeviceKind::cuda}, 1);
  set("refuse_algorithms", 2);
  EXPECT_EQ(multiply(third), whole);
  EXPECT_NE(said.find("rejected 2 of the 3"), std::string::npos) << said;
}

TEST_F(RefusedAlgorithms, InAnyOrderOthersMayBeTaken) {
  const auto count =
      reinterpret_cast<int64_t (*)(uint32_t, uint32_t)>(cuda_symbol("shim_products"));
  const int64_t in_place = count(kDefault, kInPlace), in_order = count(kDefault, kInOrder);
  product(1, true);
  EXPECT_EQ(error, "");
  EXPECT_EQ(count(kDefault, kInPlace), in_place) << "the first of the list";
  EXPECT_EQ(count(kDefault, kInOrder), in_order + 2);
}

TEST_F(RefusedAlgorithms, AnErrorTellsWhenNoneIsLeft) {
  for (const auto& [status, words] :
       {std::pair{kNotSupported, "CUBLAS_STATUS_NOT_SUPPORTED (the functionality"},
        std::pair{kInvalidValue, "CUBLAS_STATUS_INVALID_VALUE (an unsupported value"},
        std::pair{kArchMismatch, "CUBLAS_STATUS_ARCH_MISMATCH (the device lacks"}}) {
    set("refusal", status);
    for (int again = 0; again < 2; ++again) {
      product(99);
      EXPECT_NE(
          error.find("proposed 3 deterministic algorithms for 1 product of op(a) [8,512] and "
                     "op(b) [512,16], f32 to f32 and rejected all of them, the last one with " +
                     std::string(words)),
          std::string::npos)
          << error;
    }
  }
  product(0);
  EXPECT_EQ(error, "") << "nothing is left of a refusal";
}

TEST_F(RefusedAlgorithms, AFailureOfTheDeviceIsNoRefusal) {
  set("refusal", kExecutionFailed);
  product(2);
  EXPECT_NE(error.find("cublasLtMatmul of 1 product of op(a) [8,512]"), std::string::npos) << error;
  EXPECT_NE(error.find("CUBLAS_STATUS_EXECUTION_FAILED"), std::string::npos) << error;
}

TEST_F(RefusedAlgorithms, EpiloguesStayWithTheNextOneOrAreMadeOfParts) {
  set("refuse_algorithms", 1);
  EXPECT_EQ(queued(up(DType::bf16, 40), kGeluAuxBias, kInOrder), 1);
  // Another product, all of whose algorithms are refused at first.
  const GemmArgs args = up(DType::bf16, 48);
  set("refuse_algorithms", 99);
  testing::internal::CaptureStderr();
  EXPECT_THROW(queued(args, kBias), Error) << "the product alone is refused, too";
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(
      said.find("1 product of op(a) [16,24] and op(b) [24,48], bf16 to bf16 with a bias and gelu "
                "and rejected all of them"),
      std::string::npos)
      << said;
  EXPECT_NE(said.find("the GEMM runs without the fused epilogue"), std::string::npos) << said;
  set("refuse_algorithms", 0);
  EXPECT_EQ(queued(args, kBias), 1) << "from then on of parts";
  EXPECT_EQ(queued(args, kGeluAuxBias), 0);
}

class TunedProducts : public RefusedAlgorithms {
 protected:
  void TearDown() override {
    set("fast_algorithm", -1);
    RefusedAlgorithms::TearDown();
  }
  static int64_t last() {
    return reinterpret_cast<int64_t (*)()>(cuda_symbol("shim_last_algorithm"))();
  }
  // Product by a runtime that tunes, with the algorithm at index `fast` made the fastest.
  std::vector<double> tuned(Runtime& runtime, int fast, std::vector<GemmChoice> kept = {}) {
    set("fast_algorithm", fast);
    gemm_tuning(runtime.stream()).use(std::move(kept));
    gemm_tuning(runtime.stream()).time_others();
    return multiply(runtime, false);
  }
};

// Without atomics the list is: parts added in order, whole sums, whole sums again.
TEST_F(TunedProducts, TakeTheFastestAlgorithm) {
  const std::vector<double> in_parts = product(0);
  for (int fast = 0; fast < 3; ++fast) {
    Runtime runtime({DeviceKind::cuda}, 1);
    const std::vector<double> bits = tuned(runtime, fast);
    EXPECT_EQ(said, "");
    EXPECT_EQ(last(), fast);
    EXPECT_EQ(bits == in_parts, fast == 0) << "the bits are those of the algorithm";
    set("fast_algorithm", (fast + 1) % 3);
    EXPECT_EQ(multiply(runtime, false), bits);
    EXPECT_EQ(last(), fast) << "a product is timed once";
  }
  Runtime untuned({DeviceKind::cuda}, 1);
  set("fast_algorithm", 2);
  EXPECT_EQ(multiply(untuned, false), in_parts);
  EXPECT_EQ(last(), 0);
}

TEST_F(TunedProducts, AddToTheirOutOnce) {
  for (const bool tunes : {false, true}) {
    Runtime runtime({DeviceKind::cuda}, 1);
    Arena& arena = runtime.arena(MemoryClass::activations);
    const Table& kernels = table(DeviceKind::cuda);
    const GemmArgs args{.a = Tensor::empty(arena, {8, 512}, DType::f32, "a"),
                        .b = Tensor::empty(arena, {512, 16}, DType::f32, "b"),
                        .out = Tensor::empty(arena, {8, 16}, DType::f32, "out"),
                        .beta = 1};
    set("fast_algorithm", 2);
    if (tunes) gemm_tuning(runtime.stream()).time_others();
    for (const auto& [tensor, value] : {std::pair{args.a, 2.0f}, {args.b, 3.0f}, {args.out, 5.0f}})
      kernels.fill({.out = tensor, .value = value}, runtime.stream());
    kernels.gemm(args, runtime.stream());
    kernels.gemm(args, runtime.stream());
    runtime.stream().synchronize();
    EXPECT_EQ(last(), tunes ? 2 : 0);
    for (const double x : to_doubles(args.out)) ASSERT_EQ(x, 5 + 2 * 512 * 6);
  }
}

TEST_F(TunedProducts, PassOverAlgorithmsThatAreRefused) {
  Runtime runtime({DeviceKind::cuda}, 1);
  set("refuse_algorithms", 2);
  tuned(runtime, 1);
  EXPECT_EQ(error, "");
  EXPECT_EQ(last(), 2);
}

TEST_F(TunedProducts, TakeTheAlgorithmThatWasKept) {
  Runtime first({DeviceKind::cuda}, 1);
  const std::vector<double> bits = tuned(first, 1);
  std::vector<GemmChoice> kept = gemm_tuning(first.stream()).choices();
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_NE(kept[0].product.find("f32 to f32: 1 x [8,16,512]"), std::string::npos)
      << kept[0].product;
  Runtime second({DeviceKind::cuda}, 1);
  EXPECT_EQ(tuned(second, 0, kept), bits);
  EXPECT_EQ(said, "");
  EXPECT_EQ(last(), 1);
  EXPECT_EQ(gemm_tuning(second.stream()).choices(), kept);

  kept[0].algorithm[0] ^= 1;
  Runtime third({DeviceKind::cuda}, 1);
  tuned(third, 0, kept);
  EXPECT_EQ(last(), 0) << "it is timed anew";
  EXPECT_EQ(lines(said), 1) << said;
  EXPECT_NE(said.find("does not propose the algorithm that was saved"), std::string::npos) << said;
  EXPECT_NE(gemm_tuning(third.stream()).choices(), kept);
}

TEST_F(TunedProducts, FollowOtherChoicesLater) {
  Runtime first({DeviceKind::cuda}, 1), second({DeviceKind::cuda}, 1);
  const std::vector<double> bits = tuned(first, 0);
  EXPECT_NE(tuned(second, 1), bits);
  GemmTuning& tuning = gemm_tuning(second.stream());
  const std::vector<GemmChoice> own = tuning.choices();
  tuning.use(gemm_tuning(first.stream()).choices());
  EXPECT_EQ(multiply(second, false), bits);
  EXPECT_EQ(last(), 0) << "of a product that was timed here";
  tuning.use(own);
  multiply(second, false);
  EXPECT_EQ(last(), 1);
  tuning.use({});
  EXPECT_EQ(multiply(second, false), bits) << "nothing is chosen: the first of the list";
  EXPECT_EQ(said, "");
}

}  // namespace
}  // namespace megatron::kernels
