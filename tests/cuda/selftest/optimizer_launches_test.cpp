// The optimizer's launches on a GPU in a step: their number does not grow with the number of
// parameters, and the bits equal those of a call per parameter.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "device/cuda_plugin.h"
#include "kernels/observer.h"
#include "optim/optimizer.h"

namespace megatron::optim {
namespace {

int64_t launches(const char* kernel = "") {
  return reinterpret_cast<int64_t (*)(const char*)>(cuda_symbol("shim_launches"))(kernel);
}

struct Watcher final : kernels::Observer {
  void after(const kernels::Call&) override {}
};

void fill(Tensor& t, size_t seed) {
  std::vector<double> values(static_cast<size_t>(t.elements()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = std::sin(static_cast<double>(1 + i * (seed + 3)));
  copy_from(t, std::span<const double>(values));
}

// Parameters of many sizes between embedding and output, and the parameter of an embedding.
class Shards {
 public:
  Shards(int count, DType type, Runtime& runtime) : placed_(static_cast<size_t>(count)) {
    Arena& arena = runtime.arena(MemoryClass::parameters);
    for (size_t i = 0; i < placed_.size(); ++i) {
      const auto n = static_cast<int64_t>(i);
      const Shape shape = i % 4 == 3 ? Shape{5 + n} : Shape{7 + 3 * n, 11 + 40 * (n % 3)};
      const std::string name = "p" + std::to_string(i);
      Parameter& p = placed_[i].parameter;
      p.name = name;
      p.value = Tensor::empty(arena, shape, type, name);
      fill(p.value, i);
      Tensor gradient = Tensor::empty(arena, shape, DType::f32, name + ".gradient");
      fill(gradient, 100 + i);
      placed_[i].whole = shape;
      placed_[i].decay = shape.rank() > 1;
      placed_[i].role = i == 1 ? parallel::Role::embedding : parallel::Role::hidden;
      placed_[i].placement.tensors = {{.name = name, .global = shape}};
      all.push_back({&placed_[i], 0, p.value, gradient});
    }
  }
  std::vector<parallel::Shard> all;

 private:
  std::vector<parallel::ParameterSpec> placed_;
};

struct Result {
  std::vector<std::vector<double>> bits;           // values, states and the norms
  int64_t launches = 0, updates = 0, squares = 0;  // in one step
};

// watched: makes every call separately.
Result run(int count, DType type, const OptimizerConfig& config, int64_t window, bool watched) {
  Runtime runtime({DeviceKind::cuda}, 1);
  Shards shards(count, type, runtime);
  Optimizer optimizer(shards.all, config, {.norm_window = window}, runtime);
  Watcher watcher;
  if (watched) runtime.stream().watch(&watcher);
  Result result;
  for (int step = 0; step < 3; ++step) {
    const int64_t before = launches(), updates = launches("over_tensors"),
                  squares = launches("square_blocks");
    optimizer.find_norm(3);
    optimizer.update({.learning_rate = 1e-2, .weight_decay = 0.1, .decoupled_learning_rate = 3e-3});
    result.launches = launches() - before;
    result.updates = launches("over_tensors") - updates;
    result.squares = launches("square_blocks") - squares;
    result.bits.push_back(to_doubles(optimizer.gradient_norm()));
  }
  runtime.stream().watch(nullptr);
  for (const parallel::Shard& shard : shards.all) result.bits.push_back(to_doubles(shard.value));
  for (const Optimizer::State& state : optimizer.states())
    result.bits.push_back(is_floating(state.value.dtype())
                              ? to_doubles(state.value)
                              : to_doubles(state.value.view_as(DType::bf16)));
  return result;
}

struct Case {
  std::string name;
  DType type = DType::f32;
  OptimizerConfig config;
  int64_t updates = 1;  // launches
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class OptimizerLaunches : public ::testing::TestWithParam<Case> {};

TEST_P(OptimizerLaunches, AreAsManyForAnyNumberOfParameters) {
  const Case& c = GetParam();
  constexpr int64_t kWindow = 1 << 10;
  const Result few = run(5, c.type, c.config, kWindow, false);
  const Result many = run(40, c.type, c.config, kWindow, false);
  const Result single = run(40, c.type, c.config, kWindow, true);
  EXPECT_EQ(few.updates, c.updates);
  EXPECT_EQ(many.updates, c.updates);
  EXPECT_EQ(many.squares, 1);
  EXPECT_EQ(many.launches, few.launches);
  // Fills of six scalars, the squares, the norm computed from them, and the updates.
  EXPECT_EQ(many.launches, 8 + c.updates);
  EXPECT_GE(single.updates, 40);
  EXPECT_EQ(single.squares, 40);
  ASSERT_EQ(many.bits.size(), single.bits.size());
  for (size_t i = 0; i < many.bits.size(); ++i) {
    EXPECT_TRUE(std::ranges::equal(many.bits[i], single.bits[i], {},
                                   std::bit_cast<uint64_t, double>,
                                   std::bit_cast<uint64_t, double>))
        << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Rules, OptimizerLaunches,
    ::testing::Values(Case{"Adam"}, Case{"AdamBf16", DType::bf16},
                      Case{"AdamOfMomentsInBf16",
                           DType::bf16,
                           {.exp_avg_type = DType::bf16, .exp_avg_sq_type = DType::bf16}},
                      Case{"AdamFp16", DType::f16, {}, 2},  // and the parameters from their masters
                      Case{"Sgd", DType::f32, {.method = Method::sgd}},
                      Case{"LionBf16", DType::bf16, {.method = Method::lion}}),
    [](const auto& info) { return info.param.name; });

// One launch computes the squares of each window of blocks.
TEST(NormLaunches, AreOneAWindowOfBlocks) {
  const Result one = run(40, DType::f32, {}, 1 << 10, false);
  const Result many = run(40, DType::f32, {}, 16, false);
  EXPECT_EQ(one.squares, 1);
  EXPECT_EQ(many.squares, 3);
  EXPECT_EQ(many.bits, one.bits);
}

}  // namespace
}  // namespace megatron::optim
