// The contents of each rank's arenas shrink as the formulas of docs/parallelism.md say.
#include <array>
#include <mutex>

#include "dist/ranks.h"
#include "dist/training/runs.h"
#include "plan/parameters.h"
#include "training/trained_model.h"

namespace megatron::training {
namespace {

using parallel::Sharding;

constexpr int64_t kHidden = 256, kFfn = 512, kLayers = 4, kVocabulary = 512, kLength = 16;
// Matrix elements of one layer, and those that every tensor-parallel rank holds in full.
constexpr int64_t kMatrices = 4 * kHidden * kHidden + 3 * kHidden * kFfn, kNorms = 2 * kHidden;
constexpr int64_t kTable = kVocabulary * kHidden;  // the output layer has as many
// Buffer of sums of squares for the gradient norm. Its size is the same for all models.
const int64_t kNorm = 8 * (1 + optim::OptimizerGroups().norm_window);
constexpr int64_t kParameters = kLayers * (kMatrices + kNorms) + 2 * kTable + kHidden;

models::Model llama() {
  settings::TrainSettings s = deep_llama();
  s.shape.hidden_size = kHidden;
  s.shape.ffn_hidden_size = kFfn;
  s.shape.vocab_size = kVocabulary;
  s.shape.group_query_attention = false;
  return models::model_from_flags(s.shape, kLength);
}

struct Spread {
  int tp = 1, pp = 1, dp = 1;
  Sharding sharding = Sharding::none;
  DType type = DType::f32;
  int instances = 1;
};

struct Bytes {
  int64_t parameters = 0, gradients = 0, optimizer = 0;
};

corpus::HostBatch batch(int64_t first) {
  corpus::HostBatch b{.layout = {.sequences = 1, .length = kLength}, .sample_ids = {first}};
  for (int32_t i = 0; i < kLength; ++i) {
    b.tokens.push_back(i * 7 % 97);
    b.labels.push_back((i * 7 + 7) % 97);
    b.positions.push_back(i);
    b.loss_mask.push_back(1);
  }
  return b;
}

// High-water marks of each rank after a step of two micro-batches.
std::vector<Bytes> marks(const Spread& spread) {
  const int ranks = spread.tp * spread.pp * spread.dp;
  std::vector<Bytes> found(static_cast<size_t>(ranks));
  testing::run_ranks(ranks, [&](comm::Group& world) {
    Runtime runtime({DeviceKind::cpu, 0}, 1);
    ModelLayout layout;
    layout.ranks.layout = {.tp = spread.tp, .pp = spread.pp, .instances = spread.instances};
    layout.ranks.pipeline = {.stages = spread.pp};
    layout.ranks.sharding = spread.sharding;
    TrainedModel model(llama(), spread.type, 1, layout, world, runtime,
                       {.data_parallel = {.sharding = spread.sharding}});
    model.initialize(1);
    model.step.begin({});
    const int64_t first = 2 * model.ranks.samples().rank();
    const std::array batches = {batch(first), batch(first + 1)};
    model.step.run(batches, {.learning_rate = 1e-3});
    const auto mark = [&](MemoryClass c) { return runtime.arena(c).high_water(); };
    found[static_cast<size_t>(world.rank())] = {
        mark(MemoryClass::parameters), mark(MemoryClass::gradients), mark(MemoryClass::optimizer)};
  });
  return found;
}

// Padding between parameters, for which there are no optimizer states. The last shard has less.
constexpr int64_t kBetween = 1024;

// Expects at least `expected` bytes, and at most the padding between parameters and a step's
// scalars more.
void expect_bytes(const std::vector<Bytes>& ranks, const Bytes& expected, int64_t slack,
                  const char* what) {
  const auto near = [&](int64_t bytes, int64_t wanted, const char* name) {
    EXPECT_GE(bytes, wanted) << what << ", " << name;
    EXPECT_LE(bytes, wanted + slack) << what << ", " << name;
  };
  for (const Bytes& rank : ranks) {
    near(rank.parameters, expected.parameters, "parameters");
    near(rank.gradients, expected.gradients, "gradients");
    near(rank.optimizer, expected.optimizer + kNorm - kBetween, "optimizer");
  }
}

constexpr int64_t kSmall = 32 << 10;
// Shards of a bucket end where a block of the gradient norm does.
constexpr int64_t kBlockBytes = 4 * 16384;
constexpr int64_t kSpan = kMatrices + kNorms;  // the largest span: a layer
constexpr int64_t kSpans = kLayers + 2;

TEST(BytesPerClass, OneRankAndReplicas) {
  const Bytes all{4 * kParameters, 4 * kParameters, 8 * kParameters};
  expect_bytes(marks({}), all, kSmall, "one rank");
  expect_bytes(marks({.dp = 2}), all, kSmall, "replicas");
  expect_bytes(marks({.type = DType::bf16}), {2 * kParameters, 4 * kParameters, 10 * kParameters},
               kSmall, "bf16");
}

TEST(BytesPerClass, ZeRO1DividesTheOptimizer) {
  for (const int n : {2, 4}) {
    expect_bytes(marks({.dp = n, .sharding = Sharding::optimizer}),
                 {4 * kParameters, 4 * kParameters, 8 * kParameters / n}, 2 * n * kBlockBytes,
                 "optim");
  }
  expect_bytes(marks({.dp = 2, .sharding = Sharding::optimizer, .type = DType::bf16}),
               {2 * kParameters, 4 * kParameters, 10 * kParameters / 2}, 4 * kBlockBytes,
               "optim, bf16");
}

TEST(BytesPerClass, ZeRO2DividesTheGradients) {
  for (const int n : {2, 4}) {
    const std::vector<Bytes> ranks = marks({.dp = n, .sharding = Sharding::gradients});
    for (const Bytes& rank : ranks) {
      EXPECT_GE(rank.parameters, 4 * kParameters);
      EXPECT_GE(rank.gradients, 4 * kParameters / n);
      EXPECT_LE(rank.gradients,
                4 * kParameters / n + kSpans * kBlockBytes + 2 * 4 * kSpan + kSmall);
      EXPECT_LE(rank.optimizer, 8 * kParameters / n + kNorm + 2 * kSpans * kBlockBytes);
    }
  }
}

TEST(BytesPerClass, ZeRO3DividesTheParameters) {
  for (const int n : {2, 4}) {
    const std::vector<Bytes> ranks = marks({.dp = n, .sharding = Sharding::parameters});
    for (const Bytes& rank : ranks) {
      EXPECT_GE(rank.parameters, 4 * kParameters / n);
      EXPECT_LE(rank.parameters,
                4 * kParameters / n + kSpans * kBlockBytes + 2 * 4 * kSpan + kSmall);
      EXPECT_LE(rank.gradients,
                4 * kParameters / n + kSpans * kBlockBytes + 2 * 4 * kSpan + kSmall);
      EXPECT_LE(rank.optimizer, 8 * kParameters / n + kNorm + 2 * kSpans * kBlockBytes);
    }
  }
}

TEST(BytesPerClass, InstancesDivideByTheirOwnRanks) {
  const std::vector<Bytes> ranks =
      marks({.dp = 4, .sharding = Sharding::optimizer, .instances = 2});
  expect_bytes(ranks, {4 * kParameters, 4 * kParameters, 8 * kParameters / 2}, 4 * kBlockBytes,
               "two instances of two");
}

TEST(BytesPerClass, TensorRanksDivideMatricesAndTables) {
  for (const int n : {2, 4}) {
    const int64_t mine = (kLayers * kMatrices + 2 * kTable) / n + kLayers * kNorms + kHidden;
    expect_bytes(marks({.tp = n}), {4 * mine, 4 * mine, 8 * mine}, kSmall, "tensor");
  }
}

TEST(BytesPerClass, StagesDivideLayers) {
  for (const int n : {2, 4}) {
    const std::vector<Bytes> ranks = marks({.pp = n});
    for (int stage = 0; stage < n; ++stage) {
      int64_t mine = kLayers / n * (kMatrices + kNorms);
      if (stage == 0) mine += kTable;
      if (stage == n - 1) mine += kTable + kHidden;
      expect_bytes({ranks[static_cast<size_t>(stage)]}, {4 * mine, 4 * mine, 8 * mine}, kSmall,
                   "stage");
    }
  }
}

}  // namespace
}  // namespace megatron::training
