// A feed-forward block that processes its tokens in chunks gives the same bits as the whole block
// on the host, for any activation, type and number of chunks, with gradients that already have a
// value, and with deferred weight gradients. Its wide results take the memory of one chunk.
#include <gtest/gtest.h>

#include "base/philox.h"
#include "nn/mlp.h"

namespace megatron::nn {
namespace {

constexpr int64_t kWidth = 224;

struct Variant {
  std::string name;
  MlpConfig config;
};
const std::vector<Variant> kVariants = {
    {"gelu", {.ffn = kWidth, .bias = true}},
    {"relu", {.ffn = kWidth, .activation = kernels::Activation::squared_relu}},
    {"swiglu", {.ffn = kWidth, .activation = kernels::Activation::silu, .gated = true}},
    {"clamped",
     {.ffn = kWidth,
      .activation = kernels::Activation::quick_gelu,
      .gated = true,
      .bias = true,
      .clamp = 0.5,
      .up_offset = 1}},
};

class MlpChunks : public ::testing::TestWithParam<DType> {
 protected:
  static constexpr int64_t kTokens = 70, kHidden = 40;
  struct Result {
    std::vector<std::vector<double>> values;  // y twice, dx, then each parameter's gradient
    // Bytes of the first micro-batch in addition to x: the peak of a pass without backward, between
    // forward and backward, and the overall peak.
    int64_t forward = 0, kept = 0, most = 0;
  };

  void fill(Tensor& t, const std::string& name, double scale) {
    std::vector<double> values(static_cast<size_t>(t.elements()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = scale * RandomStream(1, name).normal(i);
    copy_from(t, std::span<const double>(values));
  }
  Tensor drawn(Runtime& runtime, Shape shape, const std::string& name) {
    Tensor t = Tensor::empty(runtime.arena(MemoryClass::activations), shape, GetParam(), "test");
    fill(t, name, 1);
    return t;
  }

  // Two micro-batches, so that gradients are written and then added to.
  Result run(const MlpConfig& config, int64_t chunks, bool in_parts = false,
             const std::string& frozen = "") {
    Runtime runtime{{DeviceKind::cpu}, 2};
    Builder builder(runtime, GetParam(), [](const std::string& name, const Shape& shape) {
      parallel::Placement placement;
      placement.tensors = {{name, shape, {{0, {{0, 0, shape[0]}}}}}};
      return placement;
    });
    const Mlp mlp(builder, "mlp", kHidden, config, zeros(), zeros(), chunks);
    const auto placed = builder.take();
    std::vector<parallel::ParameterSpec*> all;
    for (const auto& p : placed) all.push_back(p.get());
    parallel::allocate(all, runtime);
    for (const auto& p : placed) {
      fill(p->parameter.value, p->parameter.name, 0.3);
      p->parameter.trainable = p->parameter.name != frozen;
      p->parameter.uses[0] = {.grad = Tensor::empty(runtime.arena(MemoryClass::gradients),
                                                    p->parameter.value.shape(), DType::f32, "")};
    }
    Result result;
    Arena& arena = runtime.arena(MemoryClass::activations);
    const int64_t row = kTokens * kHidden * size_of(GetParam());
    for (const char* batch : {"0", "1"}) {
      const Tensor in = drawn(runtime, {kTokens, kHidden}, std::string("x") + batch);
      Tape inference(runtime, Tape::Mode::infer);
      result.values.push_back(to_doubles(mlp(inference, in).value));
      if (result.forward == 0) result.forward = arena.high_water() - row;
      Tape tape(runtime);
      const Var x = tape.leaf(in);
      Var y = mlp(tape, x);
      result.values.push_back(to_doubles(y.value));
      y.value = {};
      result.kept = arena.in_use() - row;
      tape.set_gradient(y, drawn(runtime, {kTokens, kHidden}, std::string("dy") + batch));
      if (in_parts) tape.backward(BackwardPart::input);
      tape.backward(in_parts ? BackwardPart::weight : BackwardPart::all);
      if (result.most == 0) result.most = arena.high_water() - row;
      result.values.push_back(to_doubles(tape.gradient(x)));
    }
    for (const auto& p : placed) {
      EXPECT_EQ(p->parameter.uses[0].micro_batches, p->parameter.trainable ? 2 : 0);
      if (p->parameter.trainable) result.values.push_back(to_doubles(p->parameter.uses[0].grad));
    }
    return result;
  }
};

TEST_P(MlpChunks, HaveTheBitsOfTheWhole) {
  for (const Variant& v : kVariants) {
    const Result whole = run(v.config, 1);
    for (const int64_t chunks : {2, 3, 7, 70, 1000})  // 3 divides neither size
      for (const bool in_parts : {false, true})
        EXPECT_EQ(run(v.config, chunks, in_parts).values, whole.values)
            << v.name << ", " << chunks << " chunks";
  }
}

TEST_P(MlpChunks, HaveFrozenWeights) {
  for (const Variant& v : kVariants)
    for (const char* frozen : {"mlp.up.weight", "mlp.up.bias", "mlp.down.weight", "mlp.down.bias"})
      EXPECT_EQ(run(v.config, 3, false, frozen).values, run(v.config, 1, false, frozen).values)
          << v.name << ", " << frozen;
}

// Seven chunks of ten rows, and seven slices of 32 columns. At most 3 buffers for a gated block's
// inner results (twice as wide) and the activation's exist at once in forward, and 5 in backward.
TEST_P(MlpChunks, TakeTheMemoryOfOneChunk) {
  const MlpConfig& config = kVariants[2].config;
  const Result whole = run(config, 1), chunked = run(config, 7);
  const int64_t row = kTokens * size_of(GetParam()), wide = row * kWidth,
                others = 3 * row * kHidden + wide / 50;  // y, dy, dx and the arena's alignment
  EXPECT_GE(whole.forward, 3 * wide);
  EXPECT_GE(whole.kept, 3 * wide);
  EXPECT_GE(whole.most, 6 * wide);
  EXPECT_LE(chunked.forward, 3 * wide / 7 + others);
  EXPECT_LE(chunked.kept, wide / 50);
  EXPECT_LE(chunked.most, 5 * wide / 7 + others);
}

INSTANTIATE_TEST_SUITE_P(Types, MlpChunks, ::testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(name(info.param)); });

}  // namespace
}  // namespace megatron::nn
