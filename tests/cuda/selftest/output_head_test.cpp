// The output layer with more tokens than a chunk of logits has rows: how CUDA splits them, and what
// is planned for it.
#include <gtest/gtest.h>

#include <numeric>

#include "autograd/tape.h"
#include "comm/gpu/staged.h"
#include "comm/threads.h"
#include "device/cuda_plugin.h"
#include "kernels/observer.h"
#include "ops/linear_cross_entropy.h"
#include "parallel/token_log_probabilities.h"
#include "parallel/vocabulary.h"

namespace megatron::parallel {
namespace {

constexpr int64_t kTokens = 2100, kVocabulary = 70, kWidth = 16;

// Records the shape of `a` in every product.
class Products final : public kernels::Observer {
 public:
  void after(const kernels::Call& call) override {
    if (call.kernel == "gemm") of_a.push_back(call.operands[0].tensor.shape());
  }
  std::vector<Shape> of_a;
};

Tensor drawn(Runtime& runtime, Shape shape, DType type, double scale) {
  Tensor t = Tensor::empty(runtime.arena(MemoryClass::activations), shape, type, "test");
  if (!runtime.device().has_data()) return t;
  std::vector<double> values(static_cast<size_t>(shape.elements()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = scale * (static_cast<double>(i * 37 % 101) / 50 - 1);
  copy_from(t, values);
  return t;
}

struct Head {
  std::vector<Shape> products;
  std::vector<double> loss, dx, dw;
  int64_t scratch = 0;
};

// Number so far.
int64_t misaligned_products() {
  return reinterpret_cast<int64_t (*)()>(cuda_symbol("shim_misaligned_products"))();
}

enum class Values { losses, log_probabilities };

// Output head over this rank's rows of the vocabulary. Its log-probabilities receive the gradient
// with which they are the objective of the losses.
Head head(Runtime& runtime, DType type, comm::Group* group = nullptr, double soft_cap = 0,
          Values values = Values::losses) {
  const TensorParallel tp{.group = group};
  const Slice rows = share_of(kVocabulary, tp.size(), tp.rank());
  Parameter w;
  w.value = drawn(runtime, {kVocabulary, kWidth}, type, 1).slice(0, rows.global_begin, rows.size);
  w.uses[0].grad = drawn(runtime, {rows.size, kWidth}, DType::f32, 0);
  Tensor labels = Tensor::empty(runtime.arena(MemoryClass::activations), {kTokens}, DType::i32, "");
  if (runtime.device().has_data()) {
    std::vector<int32_t> of_tokens(kTokens);
    for (size_t i = 0; i < of_tokens.size(); ++i)
      of_tokens[i] = static_cast<int32_t>(i * 11 % kVocabulary);
    copy_from(labels, std::span<const int32_t>(of_tokens));
  }
  Tensor weights =
      Tensor::empty(runtime.arena(MemoryClass::activations), {kTokens}, DType::f32, "");
  if (runtime.device().has_data()) copy_from(weights, std::vector<double>(kTokens, 0.25));
  Products products;
  runtime.stream().watch(&products);
  Tape tape(runtime);
  const Var x = tape.leaf(drawn(runtime, {kTokens, kWidth}, type, 1));
  Tensor loss;
  if (values == Values::losses) {
    loss = vocabulary_cross_entropy(tape, x, w, rows.global_begin, labels, weights, tp, soft_cap);
  } else {
    Tensor all = Tensor::empty(runtime.arena(MemoryClass::activations), {kTokens}, DType::i32, "");
    std::vector<int32_t> order(kTokens);
    std::iota(order.begin(), order.end(), 0);
    if (runtime.device().has_data()) copy_from(all, std::span<const int32_t>(order));
    const Var out =
        token_log_probabilities(tape, x, w, rows.global_begin, {all, labels}, tp, soft_cap);
    Tensor gradient = tape.empty({kTokens}, DType::f32, "");
    if (runtime.device().has_data()) copy_from(gradient, std::vector<double>(kTokens, -0.25));
    tape.set_gradient(out, gradient);
    loss = out.value;
  }
  tape.backward();
  runtime.stream().synchronize();
  runtime.stream().watch(nullptr);
  Head out{.products = products.of_a, .scratch = runtime.arena(MemoryClass::scratch).high_water()};
  if (!runtime.device().has_data()) return out;
  out.loss = to_doubles(loss);
  out.dx = to_doubles(tape.gradient(x));
  out.dw = to_doubles(w.uses[0].grad);
  return out;
}

// Shapes of the logits, the gradient of x and the gradient of the weight, for any share of the
// vocabulary.
std::vector<Shape> in_chunks_of_1024(int64_t vocabulary) {
  std::vector<Shape> shapes;
  for (const int64_t rows : {1024, 1024, 52})
    for (const int64_t width : {kWidth, vocabulary, vocabulary}) shapes.push_back({rows, width});
  return shapes;
}

void expect_near(const std::vector<double>& a, const std::vector<double>& b, double bound) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], bound * (1 + std::abs(b[i]))) << i;
}

TEST(CudaOutputHead, CutsTokensInChunksOf1024) {
  Runtime cpu({DeviceKind::cpu, 0}, 1), cuda({DeviceKind::cuda, 0}, 1);
  const Head whole = head(cpu, DType::f32), cut = head(cuda, DType::f32);
  EXPECT_EQ(whole.products.size(), 3U);
  EXPECT_EQ(cut.products, in_chunks_of_1024(kVocabulary));
  expect_near(cut.loss, whole.loss, 1e-5);
  expect_near(cut.dx, whole.dx, 1e-5);
  expect_near(cut.dw, whole.dw, 1e-4);
}

TEST(CudaOutputHead, IsPlannedAsItIsCut) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const Values values : {Values::losses, Values::log_probabilities}) {
      Runtime cuda({DeviceKind::cuda, 0}, 1), meta({DeviceKind::meta, 0}, 1, DeviceKind::cuda);
      const Head made = head(cuda, type, nullptr, 0, values),
                 planned = head(meta, type, nullptr, 0, values);
      EXPECT_EQ(planned.products, made.products);
      EXPECT_EQ(planned.scratch, made.scratch) << name(type);
    }
}

TEST(CudaOutputHead, HasLogProbabilitiesOfItsLosses) {
  for (const double soft_cap : {0.0, 30.0}) {
    Runtime cuda({DeviceKind::cuda, 0}, 1);
    const Head losses = head(cuda, DType::f32, nullptr, soft_cap);
    Head values = head(cuda, DType::f32, nullptr, soft_cap, Values::log_probabilities);
    for (double& v : values.loss) v = -v;
    EXPECT_EQ(values.loss, losses.loss);
    expect_near(values.dx, losses.dx, 1e-6);
    expect_near(values.dw, losses.dw, 1e-5);
  }
}

TEST(CudaOutputHead, IsCutAlikeOnTensorParallelRanks) {
  comm::run_ranks(
      4,
      [](comm::Group& world) {
        Runtime meta({DeviceKind::meta, 0}, 1, DeviceKind::cuda);
        const int64_t rows = share_of(kVocabulary, 4, world.rank()).size;
        EXPECT_EQ(head(meta, DType::bf16, &world).products, in_chunks_of_1024(rows));
      },
      20);
}

// With a vocabulary of 70, rows are 140 bytes long in bf16 and 280 in fp32.
TEST(CudaOutputHead, HasRowsOfLogitsThatBeginAt16Bytes) {
  for (const DType type : {DType::f32, DType::bf16}) {
    Runtime runtime({DeviceKind::cuda, 0}, 1);
    const int64_t before = misaligned_products();
    head(runtime, type);
    EXPECT_EQ(misaligned_products(), before) << name(type);
    head(runtime, type, nullptr, 30);
    EXPECT_GT(misaligned_products(), before) << name(type) << ", capped";
  }
}

// The ranks have 18 and 16 rows.
TEST(CudaOutputHead, HasThemOnTensorParallelRanksToo) {
  Runtime cpu({DeviceKind::cpu, 0}, 1);
  const Head whole = head(cpu, DType::f32);
  const int64_t before = misaligned_products();
  comm::run_ranks(
      4,
      [&](comm::Group& world) {
        const Device device{DeviceKind::cuda, 0};
        Runtime runtime(device, 1);
        std::unique_ptr<comm::Group> made;
        comm::Group& group = comm::for_device(world, device, made, comm::GpuBackend::gloo);
        const Head part = head(runtime, DType::f32, &group);
        expect_near(part.loss, whole.loss, 1e-5);
        expect_near(part.dx, whole.dx, 1e-5);
      },
      60);
  EXPECT_EQ(misaligned_products(), before);
}

// The limit is 2^28 logits.
TEST(CudaOutputHead, HasFewerRowsForVeryLargeVocabularies) {
  const auto rows = [](int64_t vocabulary) {
    return ops::loss_chunk_rows(vocabulary, {.kind = DeviceKind::cuda});
  };
  for (const int64_t vocabulary : {1, 50257, 128256 / 8, 128256, 262144})
    EXPECT_EQ(rows(vocabulary), 1024) << vocabulary;
  EXPECT_EQ(rows(262145), 896);
  EXPECT_EQ(rows(int64_t{1} << 30), 128);
}

}  // namespace
}  // namespace megatron::parallel
