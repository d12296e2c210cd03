// State in host memory: the same bits, and as many bytes as the fraction says.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/philox.h"
#include "kernels/table.h"
#include "optim/optimizer.h"

namespace megatron::optim {
namespace {

void fill(Tensor& t, const std::string& name) {
  uint64_t bits = hash_name(name);
  std::vector<float> values(static_cast<size_t>(t.elements()));
  for (float& value : values) {
    bits = bits * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<float>(bits >> 40) / (1 << 23) - 1;
  }
  copy_from(t, std::span<const float>(values));
}

struct Case {
  Method method;
  DType type;
  int64_t rows = 0;  // rows of the first matrix; the second is [5, 7], then a bias [7]
};

struct Result {
  std::vector<std::vector<float>> values, states;
  int64_t device = 0, host = 0;  // bytes of state
};

Result run(const Case& c, double fraction) {
  Runtime runtime({c.type == DType::f64 ? DeviceKind::reference : DeviceKind::cpu, 0}, 1);
  Arena& arena = runtime.arena(MemoryClass::parameters);
  std::vector<parallel::ParameterSpec> placed(3);
  std::vector<parallel::Shard> shards;
  const Shape shapes[] = {{c.rows, 10}, {5, 7}, {7}};
  for (size_t i = 0; i < placed.size(); ++i) {
    const std::string name = "p" + std::to_string(i);
    Parameter& p = placed[i].parameter;
    p.name = name;
    p.value = Tensor::empty(arena, shapes[i], c.type, name);
    Tensor gradient =
        Tensor::empty(arena, shapes[i], kernels::accumulator(c.type), name + ".gradient");
    fill(p.value, name);
    placed[i].whole = shapes[i];
    placed[i].decay = shapes[i].rank() > 1;
    placed[i].placement.tensors = {{.name = name, .global = shapes[i]}};
    shards.push_back({&placed[i], 0, p.value, gradient});
  }
  Optimizer optimizer(shards, {.method = c.method, .offload_fraction = fraction}, {}, runtime);
  Result result{.device = runtime.arena(MemoryClass::optimizer).in_use(),
                .host = runtime.arena(MemoryClass::offload).in_use()};
  for (int step = 0; step < 3; ++step) {
    for (parallel::Shard& shard : shards)
      fill(shard.gradient, shard.placed->parameter.name + std::to_string(step));
    optimizer.find_norm(3);
    optimizer.update({.learning_rate = 1e-2, .weight_decay = 0.1});
  }
  EXPECT_EQ(runtime.arena(MemoryClass::optimizer).in_use(), result.device);
  EXPECT_EQ(runtime.arena(MemoryClass::offload).in_use(), result.host);
  for (const parallel::Shard& shard : shards) result.values.push_back(to_floats(shard.value));
  for (const Optimizer::State& state : optimizer.states()) {
    if (is_floating(state.value.dtype())) {
      result.states.push_back(to_floats(state.value));
    } else {
      const auto bits = state.value.span<int16_t>();
      result.states.emplace_back(bits.begin(), bits.end());
    }
  }
  return result;
}

TEST(OffloadedState, SameBitsAndTheBytesOfItsShare) {
  // The first matrix has most of the elements; the larger one is processed in two pieces.
  constexpr int64_t kLarge = 110000, kSmall = 50;
  const auto room = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
  const struct {
    Case c;
    int64_t bytes;  // bytes of state per element
  } cases[] = {{{Method::adam, DType::f32, kLarge}, 8},  {{Method::adam, DType::bf16, kLarge}, 10},
               {{Method::adam, DType::f16, kSmall}, 12}, {{Method::adam, DType::f64, kSmall}, 16},
               {{Method::lion, DType::bf16, kSmall}, 6}, {{Method::sgd, DType::f32, kSmall}, 4},
               {{Method::muon, DType::bf16, kSmall}, 6}};
  for (const auto& [c, bytes] : cases) {
    const std::string what = fmt::format("{} {}", name(c.method), megatron::name(c.type));
    const Result resident = run(c, 0);
    EXPECT_EQ(resident.host, 0);
    for (const double fraction : {0.5, 1.0}) {
      const Result offloaded = run(c, fraction);
      EXPECT_TRUE(offloaded.values == resident.values) << what;
      EXPECT_TRUE(offloaded.states == resident.states) << what;
      EXPECT_EQ(resident.device - offloaded.device, offloaded.host) << what;
      // Each state tensor is rounded up to 64 bytes.
      const int64_t least = bytes * c.rows * 10 + (fraction == 1 ? bytes * (5 * 7 + 7) : 0);
      EXPECT_GE(offloaded.host, least) << what;
      EXPECT_LE(offloaded.host, room(least) + 9 * 64) << what;
    }
  }
}

TEST(OffloadedState, FractionIsChecked) {
  EXPECT_THROW((OptimizerConfig{.offload_fraction = 1.5}.check()), Error);
  EXPECT_THROW((OptimizerConfig{.offload_fraction = -0.5}.check()), Error);
}

}  // namespace
}  // namespace megatron::optim
