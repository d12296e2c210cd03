// The gradient norm has the same bits for every division of a model. Also tests Muon over slices.
#include <mutex>

#include "base/error.h"
#include "dist/parallel/toy_stage.h"
#include "optim/optimizer.h"

namespace megatron::optim {
namespace {

using testing::drawn;
using testing::each_rank;

// A model of three layers; sizes around a block of 16384.
struct Item {
  std::string name;
  Shape shape;
};
const std::vector<Item> kModel = {
    {"word", {70, 300}},      {"position", {5, 3}},       {"layers.0.b", {20000}},
    {"layers.0.a", {7}},      {"layers.1.b", {3, 16384}}, {"layers.1.a", {33}},
    {"layers.10.b", {16385}}, {"layers.10.a", {1}},       {"final", {65}}};

// Elements of the model that a rank holds, with their gradients.
class Held {
 public:
  explicit Held(Runtime& runtime) : runtime_(runtime) {}

  parallel::ParameterSpec& add(const Item& item, int64_t begin, int64_t size) {
    Arena& arena = runtime_.arena(MemoryClass::parameters);
    parallel::ParameterSpec& placed = placed_.emplace_back();
    placed.parameter.name = item.name;
    placed.parameter.value = Tensor::empty(arena, item.shape, DType::f32, item.name);
    parallel::Shard shard{.placed = &placed, .begin = begin};
    const bool whole = size == item.shape.elements();
    shard.value = Tensor::empty(arena, whole ? item.shape : Shape{size}, DType::f32, "value");
    shard.gradient = Tensor::empty(arena, shard.value.shape(), DType::f32, "gradient");
    std::vector<float> gradient(static_cast<size_t>(size));
    for (size_t i = 0; i < gradient.size(); ++i)
      gradient[i] = drawn(item.name.size() + static_cast<uint64_t>(item.shape.elements()),
                          static_cast<uint64_t>(begin) + i);
    copy_from(shard.gradient, std::span<const float>(gradient));
    shards.push_back(shard);
    return placed;
  }
  std::vector<parallel::Shard> shards;

 private:
  Runtime& runtime_;
  std::deque<parallel::ParameterSpec> placed_;
};

double norm_of(const Held& held, const OptimizerGroups& groups, Runtime& runtime) {
  Optimizer optimizer(held.shards, {}, groups, runtime);
  optimizer.find_norm(7);
  return read_scalar(optimizer.gradient_norm(), runtime.stream());
}

double of_one_rank() {
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  Held held(runtime);
  for (const Item& item : kModel) held.add(item, 0, item.shape.elements());
  return norm_of(held, {}, runtime);
}

TEST(GradientNorm, IsTheSumOverBlocksInTheModelsOrder) {
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  double sum = 0;
  for (const Item& item : kModel) {
    for (int64_t begin = 0; begin < item.shape.elements(); begin += kernels::kNormBlock) {
      const int64_t size = std::min(kernels::kNormBlock, item.shape.elements() - begin);
      Held held(runtime);
      held.add(item, begin, size);
      const Tensor partial =
          Tensor::empty(runtime.arena(MemoryClass::activations), {1}, DType::f64, "partial");
      const Tensor x = held.shards[0].gradient.view({size});
      kernels::table(runtime.stream())
          .sum_of_squares({.x = x, .partial = partial}, runtime.stream());
      sum += to_doubles(partial)[0];
    }
  }
  EXPECT_EQ(of_one_rank(), std::sqrt(sum) / 7);
}

// Interleaved stages: 0 has layers 0 and 10, 1 has layer 1 and a copy of the table.
TEST(GradientNorm, BitsAreThoseOfOneRankOnStages) {
  const double expected = of_one_rank();
  each_rank(4, DeviceKind::cpu, [&](comm::Group& world, Runtime& runtime) {
    const bool first = world.rank() % 2 == 0;  // two replicas; the first counts
    Held held(runtime);
    for (const Item& item : kModel) {
      if (item.name.starts_with("layers.1.") == first) continue;
      if (!first && !item.name.starts_with("layers.1.")) continue;
      held.add(item, 0, item.shape.elements());
    }
    if (!first) held.add(kModel[0], 0, kModel[0].shape.elements());
    for (parallel::Shard& shard : held.shards) shard.counted = world.rank() < 2;
    if (!first) held.shards.back().counted = false;
    EXPECT_EQ(norm_of(held, {.norm = &world}, runtime), expected);
  });
}

// Shards of any size, including empty ones, on three ranks.
TEST(GradientNorm, BitsAreThoseOfOneRankOnShards) {
  const double expected = of_one_rank();
  for (int shift = 0; shift < 4; ++shift) {
    each_rank(3, DeviceKind::cpu, [&](comm::Group& world, Runtime& runtime) {
      Held held(runtime);
      int block = shift;
      for (const Item& item : kModel) {
        // Each rank holds one run of blocks of each parameter.
        const int64_t n = item.shape.elements(), blocks = (n + 16383) / 16384;
        const int64_t begin =
            std::min<int64_t>(blocks, world.rank() == 0 ? 0 : block % 2 + world.rank() - 1);
        const int64_t end =
            world.rank() == 2 ? blocks : std::min<int64_t>(blocks, block % 2 + world.rank());
        held.add(item, std::min(n, begin * 16384),
                 std::min(n, end * 16384) - std::min(n, begin * 16384));
        block = block * 3 + 1 + shift;
      }
      EXPECT_EQ(norm_of(held, {.norm = &world}, runtime), expected);
    });
  }
}

// The norm of detached parameters is their own, and each kind is clipped by its norm alone: as if
// the other did not exist.
TEST(GradientNorm, DetachedParametersAreClippedByThemselves) {
  constexpr double kRate = 0.5, kClip = 0.25;
  const auto detached = [](const Item& item) { return item.name.starts_with("layers.1"); };
  const auto norm_of_kind = [&](bool kind) {
    Runtime runtime({DeviceKind::cpu, 0}, 1);
    Held held(runtime);
    for (const Item& item : kModel)
      if (detached(item) == kind) held.add(item, 0, item.shape.elements());
    return norm_of(held, {}, runtime);
  };
  const double own = norm_of_kind(false), other = norm_of_kind(true);
  EXPECT_GT(own, kClip);
  EXPECT_GT(other, kClip);
  each_rank(2, DeviceKind::cpu, [&](comm::Group& world, Runtime& runtime) {
    Held held(runtime);
    for (const Item& item : kModel) {
      const int64_t n = item.shape.elements(), first = std::min<int64_t>(n, 16384);
      held.add(item, world.rank() == 0 ? 0 : first, world.rank() == 0 ? first : n - first)
          .detached = detached(item);
    }
    for (const parallel::Shard& shard : held.shards)
      kernels::table(runtime.stream()).fill({.out = shard.value, .value = 1}, runtime.stream());
    Optimizer optimizer(held.shards, {.method = Method::sgd, .sgd_momentum = 0, .clip_grad = kClip},
                        {.norm = &world, .clips_detached = true, .norm_window = 2}, runtime);
    optimizer.find_norm(7);
    EXPECT_EQ(read_scalar(optimizer.gradient_norm(), runtime.stream()), own);
    EXPECT_EQ(read_scalar(optimizer.detached_norm(), runtime.stream()), other);
    optimizer.update({.learning_rate = kRate});
    for (const parallel::Shard& shard : held.shards) {
      const double norm = shard.placed->detached ? other : own;
      const std::vector<double> values = to_doubles(shard.value),
                                gradients = to_doubles(shard.gradient);
      for (size_t i = 0; i < values.size(); i += 97)
        EXPECT_NEAR(values[i], 1 - kRate * gradients[i] / 7 * kClip / (norm + 1e-6), 1e-6);
    }
  });
}

// Sums travel between ranks in windows of limited size.
TEST(GradientNorm, BitsDoNotDependOnTheWindow) {
  const double expected = of_one_rank();
  for (const int64_t window : {1, 2, 3, 11, 12, 100}) {
    Runtime runtime({DeviceKind::cpu, 0}, 1);
    Held whole(runtime);
    for (const Item& item : kModel) whole.add(item, 0, item.shape.elements());
    EXPECT_EQ(norm_of(whole, {.norm_window = window}, runtime), expected) << window;
    each_rank(2, DeviceKind::cpu, [&](comm::Group& world, Runtime& ranks_runtime) {
      Held held(ranks_runtime);
      for (const Item& item : kModel) {
        const int64_t n = item.shape.elements(), first = std::min<int64_t>(n, 16384);
        held.add(item, world.rank() == 0 ? 0 : first, world.rank() == 0 ? first : n - first);
      }
      EXPECT_EQ(norm_of(held, {.norm = &world, .norm_window = window}, ranks_runtime), expected)
          << window;
    });
  }
}

// The first of three slices is on the last rank: the order is that within the parameter.
TEST(GradientNorm, SlicesFollowOneAnotherAsInTheParameter) {
  constexpr int kRanks = 3;
  const Item items[] = {{"slice of 0", {4, 6000}}, {"slice of 1", {4, 6000}}, {"slice", {4, 5998}}};
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  Held apart(runtime);
  for (const Item& item : items) apart.add(item, 0, item.shape.elements());
  const double expected = norm_of(apart, {}, runtime);
  each_rank(kRanks, DeviceKind::cpu, [&](comm::Group& world, Runtime& ranks_runtime) {
    const int slice = kRanks - 1 - world.rank();
    Held held(ranks_runtime);
    parallel::ParameterSpec& spec = held.add(items[slice], 0, items[slice].shape.elements());
    spec.parameter.name = "w";
    spec.whole = {4, 17998};
    spec.divisions = {{.axis = 1, .blocks = {17998}, .ranks = kRanks, .rank = slice}};
    EXPECT_EQ(norm_of(held, {.norm = &world}, ranks_runtime), expected);
  });
}

TEST(GradientNorm, ANotFiniteGradientIsSeenByAll) {
  each_rank(2, DeviceKind::cpu, [&](comm::Group& world, Runtime& runtime) {
    Held held(runtime);
    held.add(kModel[static_cast<size_t>(world.rank())], 0,
             kModel[static_cast<size_t>(world.rank())].shape.elements());
    if (world.rank() == 1) held.shards[0].gradient.data<float>()[3] = NAN;
    EXPECT_TRUE(std::isnan(norm_of(held, {.norm = &world}, runtime)));
  });
}

// A step of Muon on two matrices of [q | k | v] and one divided by columns: the slices on all ranks
// together equal the result of one rank with the whole matrices.
TEST(Muon, SlicesAreOneMatrix) {
  constexpr int64_t kRows = 22, kColumns = 15;
  const std::vector<int64_t> blocks = {12, 5, 5};
  const auto element = [](uint64_t which, int64_t row, int64_t column) {
    return drawn(which, static_cast<uint64_t>(row * 100 + column));
  };
  OptimizerConfig config{.method = Method::muon, .clip_grad = 0};
  config.muon.precision = ProductPrecision::highest;
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const int axis : {0, 1}) {
      std::mutex mutex;
      std::vector<float> expected;
      for (const int ranks : {1, 2, 4}) {
        each_rank(ranks, DeviceKind::cpu, [&](comm::Group& world, Runtime& runtime) {
          parallel::ParameterSpec placed;
          placed.parameter.name = "w";
          placed.whole = Shape{kRows, kColumns};
          placed.matrices = blocks;
          placed.divisions = {{.axis = axis,
                               .blocks = axis == 0 ? blocks : std::vector<int64_t>{kColumns},
                               .ranks = ranks,
                               .rank = world.rank()}};
          const auto slices = placed.divisions[0].slices();
          Shape shape = placed.whole;
          int64_t size = 0;
          for (const parallel::Slice& s : slices) size += s.size;
          shape.set(axis, size);
          Arena& arena = runtime.arena(MemoryClass::parameters);
          placed.parameter.value = Tensor::empty(arena, shape, type, "value");
          parallel::Shard shard{.placed = &placed, .value = placed.parameter.value};
          shard.gradient = Tensor::empty(arena, shape, DType::f32, "gradient");
          const auto for_each = [&](auto&& f) {
            for (const parallel::Slice& s : slices) {
              for (int64_t i = 0; i < s.size; ++i) {
                for (int64_t j = 0; j < shape[1 - axis]; ++j) {
                  const int64_t row = axis == 0 ? s.local_begin + i : j,
                                column = axis == 0 ? j : s.local_begin + i;
                  f(row * shape[1] + column, axis == 0 ? s.global_begin + i : j,
                    axis == 0 ? j : s.global_begin + i);
                }
              }
            }
          };
          std::vector<float> values(static_cast<size_t>(shape.elements())), gradient(values.size());
          for_each([&](int64_t at, int64_t row, int64_t column) {
            values[static_cast<size_t>(at)] = element(1, row, column);
            gradient[static_cast<size_t>(at)] = element(2, row, column);
          });
          copy_from(shard.value, std::span<const float>(values));
          copy_from(shard.gradient, std::span<const float>(gradient));
          Optimizer optimizer(std::span(&shard, 1), config, {.norm = &world, .tensor = &world},
                              runtime);
          for (int step = 0; step < 2; ++step) {
            optimizer.find_norm(1);
            optimizer.update({.learning_rate = 0.1, .weight_decay = 0.1});
          }
          const std::vector<float> after = to_floats(shard.value);
          const std::lock_guard lock(mutex);
          if (ranks == 1) expected = after;
          for_each([&](int64_t at, int64_t row, int64_t column) {
            EXPECT_EQ(after[static_cast<size_t>(at)],
                      expected[static_cast<size_t>(row * kColumns + column)]);
          });
        });
      }
    }
  }
}

TEST(Muon, RefusesAPartOfAMatrix) {
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  Held held(runtime);
  held.add({"w", {3, 16384}}, 0, 16384);
  try {
    Optimizer(held.shards, {.method = Method::muon}, {}, runtime);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("--use-distributed-optimizer"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("--optimizer muon"), std::string::npos);
  }
}

}  // namespace
}  // namespace megatron::optim
