// Loads, drops and biases of a layer with a fixed router, compared with counts made by hand.
#include "nn/expert_load.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "nn/moe.h"

namespace megatron::nn {
namespace {

constexpr int64_t kLayer = 3, kRouted = 8, kWide = 2, kExperts = 4;

MoeConfig layer_config() {
  return {.experts = kExperts, .choices = 2, .correction_bias = true, .expert = {.ffn = 4}};
}

// There are two kinds of tokens: the first goes to experts 0 and 1, the second to 3 and 2.
class ExpertLoadTest : public ::testing::Test {
 protected:
  explicit ExpertLoadTest(const RouterTraining& training = {})
      : training_(training), metrics_(router_metrics({{kLayer, kExperts, true}}, training), true) {}

  void SetUp() override {
    placed_ = builder_.take();
    states_ = builder_.take_states();
    std::vector<parallel::ParameterSpec*> all;
    for (const auto& p : placed_) all.push_back(p.get());
    parallel::allocate(all, runtime_);
    allocate(std::vector{states_[0].get()}, runtime_);
    for (const auto& p : placed_) {
      Tensor& value = p->parameter.value;
      copy_from(value, std::vector<double>(static_cast<size_t>(value.elements()), 0.25));
    }
    copy_from(placed_[0]->parameter.value, std::vector<double>{9, -9, 8, -8, -8, 8, -9, 9});
    copy_from(states_[0]->placed.parameter.value, std::vector<double>{0.5, -0.25, 0.125, 0});
    metrics_.use(Tensor::empty(runtime_.arena(MemoryClass::optimizer), {metrics_.size()},
                               DType::f64, "test"));
    metrics_.begin_step(runtime_.stream());
  }
  void forward(Tape& tape, const std::vector<int>& kinds) {
    std::vector<double> x;
    for (const int kind : kinds) x.insert(x.end(), {kind == 0 ? 1.0 : 0.0, kind == 0 ? 0.0 : 1.0});
    Tensor t = Tensor::empty(runtime_.arena(MemoryClass::activations), {kRouted, kWide}, DType::f32,
                             "test");
    copy_from(t, std::span<const double>(x));
    tape.collect(&metrics_);
    const Var y = moe_(tape, tape.leaf(t), batch_);
    if (!tape.recording()) return;
    tape.set_gradient(y, t);
    for (const auto& p : placed_)
      p->parameter.uses[0] = {.grad =
                                  Tensor::empty(runtime_.arena(MemoryClass::gradients),
                                                p->parameter.value.shape(), DType::f32, "test")};
    tape.backward();
  }
  void forward(const std::vector<int>& kinds) {
    Tape tape(runtime_);
    forward(tape, kinds);
  }
  double figure(std::string_view name) const {
    for (const MetricValue& m : metrics_.values(to_doubles(metrics_.sums())))
      if (m.name == name && m.layers.size() == 1 && m.layers[0].layer == kLayer)
        return m.layers[0].value;
    ADD_FAILURE() << "no " << name;
    return 0;
  }

  const Batch batch_{.layout = {.sequences = 1, .length = kRouted}};  // backward reads it too
  RouterTraining training_;
  Runtime runtime_{{DeviceKind::cpu}, 1};
  Builder builder_{runtime_,
                   DType::f32,
                   [](const std::string& name, const Shape& shape) {
                     parallel::Placement placement;
                     placement.tensors = {{name, shape, {{0, {{0, 0, shape[0]}}}}}};
                     return placement;
                   },
                   {}};
  Moe moe_{builder_, "moe", kLayer, kWide, layer_config(), training_, zeros(), zeros(), 1};
  Metrics metrics_;
  std::vector<std::unique_ptr<parallel::ParameterSpec>> placed_;
  std::vector<std::unique_ptr<ModuleState>> states_;
};

const std::vector<int> kOneKind(8, 0), kUneven = {0, 0, 1, 0, 0, 1, 0, 0};

TEST_F(ExpertLoadTest, IsExpertsOverChoicesWhereAllTokensGoToTheSame) {
  forward(kOneKind);
  EXPECT_EQ(figure(kExpertLoad), 4.0 / 2);
  EXPECT_EQ(figure(kBiasRange), 0.75);
  for (const MetricValue& m : metrics_.values(to_doubles(metrics_.sums())))
    EXPECT_NE(m.name, kDroppedShare);
}

// Choices are 6, 6, 2, 2 and 8, 8, 0, 0, so the step has 14, 14, 2, 2 with a mean of 8.
TEST_F(ExpertLoadTest, IsThatOfAllMicroBatches) {
  forward(kUneven);
  EXPECT_EQ(figure(kExpertLoad), 6 / 4.0);
  forward(kOneKind);
  EXPECT_EQ(figure(kExpertLoad), 14 / 8.0);
  EXPECT_EQ(figure(kBiasRange), 0.75);
  metrics_.begin_step(runtime_.stream());
  forward(kUneven);
  EXPECT_EQ(figure(kExpertLoad), 6 / 4.0);
}

TEST_F(ExpertLoadTest, CountsNoRecomputeAndNoEvaluation) {
  const std::vector<std::string> modules = {"moe"};
  Tape tape(runtime_);
  tape.recompute_modules(modules);
  forward(tape, kUneven);
  Tape evaluation(runtime_, Tape::Mode::infer);
  forward(evaluation, kOneKind);
  forward(kUneven);
  EXPECT_EQ(figure(kExpertLoad), 6 / 4.0);
  metrics_.begin_step(runtime_.stream());
  forward(evaluation, kOneKind);
  EXPECT_TRUE(std::isnan(figure(kExpertLoad)));
}

class DroppedShareTest : public ExpertLoadTest {
 protected:
  DroppedShareTest() : ExpertLoadTest({.capacity_factor = 1}) {}
};

// An expert accepts 4 tokens: 4 of the choices 6, 6, 2, 2 are dropped, and half of 8, 8.
TEST_F(DroppedShareTest, IsOfAllChoices) {
  forward(kUneven);
  EXPECT_EQ(figure(kDroppedShare), 4 / 16.0);
  EXPECT_EQ(figure(kExpertLoad), 6 / 4.0);  // as the router chose
  forward(kOneKind);
  EXPECT_EQ(figure(kDroppedShare), 12 / 32.0);
}

class LargeCapacityTest : public ExpertLoadTest {
 protected:
  LargeCapacityTest() : ExpertLoadTest({.capacity_factor = 1e300, .padded = true}) {}
};

// Even a large buffer has at most one row per token and choice.
TEST_F(LargeCapacityTest, DropsNothing) {
  forward(kOneKind);
  EXPECT_EQ(figure(kDroppedShare), 0);
}

// One rank's experts get all choices, and any factor provides room for them.
class RankCapacityTest : public ExpertLoadTest {
 protected:
  RankCapacityTest() : ExpertLoadTest({.rank_capacity_factor = 1}) {}
};

TEST_F(RankCapacityTest, OfOneRankIsNeverReached) {
  forward(kOneKind);
  EXPECT_EQ(figure(kExpertLoad), 2);
}

// The buffer has 10 rows: only 10 of the 16 choices fit, on two ranks that both report it.
TEST(ExpertMetrics, LetAStepFailWithChoicesThatFoundNoRoom) {
  const auto definitions = expert_metrics({{5, 2, false}}, {.rank_capacity_factor = 1.25});
  ASSERT_EQ(definitions.size(), 1u);
  std::vector<double> tally = {12, 4, 6, 4, 0, 0, 0, 20, 40, 2};
  ASSERT_EQ(definitions[0].width, std::ssize(tally));
  const auto failure = [&] {
    try {
      definitions[0].check(5, tally);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  // 16 rows, where 1.25 times an even load are more than 9.
  for (const char* part :
       {"layer 5: 6 of the step's 16", "10 rows", "--moe-expert-rank-capacity-factor 1.25",
        "a larger factor (2.23 is enough for this step), or without the flag",
        "20 rows, enough for any load"})
    EXPECT_NE(failure().find(part), std::string::npos) << failure();
  tally[8] = 28;  // any load needs 14 rows: no smaller factor is certain to be enough
  EXPECT_NE(failure().find("a larger factor, or without the flag"), std::string::npos) << failure();
  tally[2] = 12;
  EXPECT_NO_THROW(definitions[0].check(5, tally));
}

}  // namespace
}  // namespace megatron::nn
