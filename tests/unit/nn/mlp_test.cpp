// The feed-forward block of a GPT with gelu fused into its products is bit-identical on the host to
// the unfused block, also if it or its gelu is recomputed.
#include "nn/mlp.h"

#include <gtest/gtest.h>

#include "base/philox.h"
#include "kernels/observer.h"

namespace megatron::nn {
namespace {

constexpr int64_t kTokens = 9, kHidden = 16, kInner = 40;

struct Counter final : kernels::Observer {
  int products = 0, activations = 0;
  void after(const kernels::Call& call) override {
    products += call.kernel == "gemm" ? 1 : 0;
    activations += call.kernel == "activation" || call.kernel == "activation_backward" ? 1 : 0;
  }
};

class MlpTest : public ::testing::TestWithParam<DType> {
 protected:
  struct Result {
    std::vector<std::vector<double>> values;  // y, dx, then each parameter's gradient
    int64_t kept = 0;                         // bytes between forward and backward
    int products = 0, activations = 0;
  };
  using Forward = std::function<Var(Tape&, const Var&)>;

  void SetUp() override {
    placed_ = builder_.take();
    std::vector<parallel::ParameterSpec*> all;
    for (const auto& p : placed_) all.push_back(p.get());
    parallel::allocate(all, runtime_);
    for (const auto& p : placed_) fill(p->parameter.value, p->parameter.name, 0.3);
  }
  void fill(Tensor& t, const std::string& name, double scale) {
    std::vector<double> values(static_cast<size_t>(t.elements()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = scale * RandomStream(1, name).normal(i);
    copy_from(t, std::span<const double>(values));
  }
  Tensor drawn(Shape shape, const std::string& name) {
    Tensor t = Tensor::empty(runtime_.arena(MemoryClass::activations), shape, GetParam(), "test");
    fill(t, name, 1);
    return t;
  }
  int64_t in_use() { return runtime_.arena(MemoryClass::activations).in_use(); }

  Result run(const Forward& forward, const std::vector<std::string>& modules = {}) {
    Result result;
    for (const auto& p : placed_) {
      Tensor grad = Tensor::empty(runtime_.arena(MemoryClass::gradients),
                                  p->parameter.value.shape(), DType::f32, "test");
      p->parameter.uses[0] = {.grad = grad};
    }
    Counter counter;
    runtime_.stream().watch(&counter);
    Tape tape(runtime_);
    tape.recompute_modules(modules);
    const Var x = tape.leaf(drawn({kTokens, kHidden}, "x"));
    const int64_t before = in_use();
    Var y = forward(tape, x);
    result.values.push_back(to_doubles(y.value));
    y.value = {};
    result.kept = in_use() - before;
    tape.set_gradient(y, drawn({kTokens, kHidden}, "dy"));
    tape.backward();
    result.values.push_back(to_doubles(tape.gradient(x)));
    for (const auto& p : placed_) result.values.push_back(to_doubles(p->parameter.uses[0].grad));
    runtime_.stream().watch(nullptr);
    result.products = counter.products;
    result.activations = counter.activations;
    return result;
  }

  Runtime runtime_{{DeviceKind::cpu}, 2};
  Builder builder_{runtime_,
                   GetParam(),
                   [](const std::string& name, const Shape& shape) {
                     parallel::Placement placement;
                     placement.tensors = {{name, shape, {{0, {{0, 0, shape[0]}}}}}};
                     return placement;
                   },
                   {}};
  Mlp mlp_{builder_, "mlp", kHidden, {.ffn = kInner, .bias = true}, zeros(), zeros()};
  std::vector<std::unique_ptr<parallel::ParameterSpec>> placed_;
};

TEST_P(MlpTest, GeluOfTheProductsIsGeluApart) {
  const auto weight = [&](size_t i) { return Weight(placed_[i]->parameter); };
  const Result apart = run([&](Tape& t, const Var& x) {
    const Var inner = ops::activation(t, ops::linear(t, x, weight(0), weight(1)),
                                      kernels::Activation::gelu_tanh, false);
    return ops::linear(t, inner, weight(2), weight(3));
  });
  const Result together = run([&](Tape& t, const Var& x) { return mlp_(t, x); });
  EXPECT_EQ(together.values, apart.values);
  EXPECT_EQ(together.kept, apart.kept);
  EXPECT_EQ(apart.activations, 2);
  EXPECT_EQ(together.activations, 0);
  EXPECT_EQ(together.products, 6);
}

TEST_P(MlpTest, RecomputedBlockKeepsItsInputOnly) {
  const Forward forward = [&](Tape& t, const Var& x) { return mlp_(t, x); };
  const Result kept = run(forward), again = run(forward, {"mlp"});
  EXPECT_EQ(again.values, kept.values);
  EXPECT_EQ(again.products, kept.products + 1);
  EXPECT_GE(kept.kept, 2 * kTokens * kInner * size_of(GetParam()));
  EXPECT_EQ(again.kept, 0);
}

TEST_P(MlpTest, RecomputedGeluKeepsItsInputAndRepeatsNoProduct) {
  const Forward forward = [&](Tape& t, const Var& x) { return mlp_(t, x); };
  const Result kept = run(forward), again = run(forward, {"mlp_act"});
  EXPECT_EQ(again.values, kept.values);
  EXPECT_EQ(again.products, kept.products);
  EXPECT_EQ(again.activations, 3);  // forward, again, and its gradient
  EXPECT_EQ(2 * again.kept, kept.kept);
}

// Without a gradient, tensors that only backward needs are not stored.
TEST_P(MlpTest, InferenceStoresNoSums) {
  Tape tape(runtime_, Tape::Mode::infer);
  const Tensor x = drawn({kTokens, kHidden}, "x");
  Arena& arena = runtime_.arena(MemoryClass::activations);
  const int64_t room = arena.in_use();
  const Var y = mlp_(tape, x);
  const int64_t most = arena.high_water() - room;
  EXPECT_LT(most, 2 * kTokens * kInner * size_of(GetParam()));
  EXPECT_EQ(to_doubles(y.value),
            run([&](Tape& t, const Var& in) { return mlp_(t, in); }).values[0]);
}

INSTANTIATE_TEST_SUITE_P(Types, MlpTest, ::testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(name(info.param)); });

}  // namespace
}  // namespace megatron::nn
