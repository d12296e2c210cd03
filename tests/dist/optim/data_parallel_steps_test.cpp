// Optimizer steps over sharded parameters: data-parallel layouts compared with one rank.
#include <mutex>

#include "base/error.h"
#include "base/tolerances.h"
#include "dist/parallel/toy_stage.h"
#include "optim/optimizer.h"

namespace megatron::optim {
namespace {

using parallel::Sharding;
using testing::each_rank;
using testing::kShardings;
using testing::ToyGroups;
using testing::ToyStage;

struct Layout {
  Method method = Method::adam;
  DType type = DType::f32;
  int ranks = 1, instances = 1, micro_batches = 1;
  Sharding sharding = Sharding::none;
  bool overlap = false;
  int64_t bucket_elements = 0;

  std::string str() const {
    return fmt::format("{} {} ranks {} instances {} micro-batches {} {} overlap {} bucket {}",
                       name(method), megatron::name(type), ranks, instances, micro_batches,
                       parallel::name(sharding), overlap, bucket_elements);
  }
};
struct Result {
  std::vector<std::vector<double>> values;  // one vector per parameter
  std::vector<double> norms;
  uint64_t seen = 0;  // elements covered by the spans

  bool operator==(const Result&) const = default;
};

// Runs three optimizer steps.
Result result_of(const Layout& run) {
  Result result;
  std::mutex mutex;
  each_rank(run.ranks, DeviceKind::cpu, [&](comm::Group& world, Runtime& runtime) {
    ToyStage stage(runtime, testing::toy_parameters(), run.type);
    const ToyGroups groups(world, run.instances);
    const bool divided = run.sharding != Sharding::none;
    parallel::DataParallelGroups data = groups.groups();
    data.dense.counted = world.rank() < (divided ? groups.shards->size() : 1);
    parallel::DataParallel dp(stage.placed(), stage.spans(), data, runtime,
                              {.sharding = run.sharding,
                               .bucket_elements = run.bucket_elements,
                               .overlap_reduce = run.overlap,
                               .overlap_gather = run.overlap});
    stage.fill(dp.shards());
    dp.parameters_changed();
    const OptimizerConfig config{.method = run.method};
    Optimizer optimizer(dp.shards(), config, {.norm = &world}, runtime);
    std::vector<double> norms;
    for (int step = 0; step < 3; ++step) {
      dp.begin_step(run.micro_batches);
      for (int m = 0; m < run.micro_batches; ++m)
        stage.run(dp, 100 * step + world.rank() * run.micro_batches + m);
      dp.finish();
      optimizer.find_norm(run.ranks * run.micro_batches);
      norms.push_back(read_scalar(optimizer.gradient_norm(), runtime.stream()));
      optimizer.update({.learning_rate = 1e-2, .weight_decay = 0.1});
      dp.parameters_changed();
    }
    dp.gather_all();
    std::vector<std::vector<double>> values;
    for (size_t p = 0; p < stage.size(); ++p)
      values.push_back(to_doubles(stage[p].parameter.value));
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) result = {values, norms, stage.seen()};
    dp.begin_step(1);
  });
  return result;
}

void expect_near(const Result& result, const Result& expected, const std::string& what) {
  double squares = 0, count = 0;
  for (const auto& list : expected.values) {
    for (const double x : list) squares += x * x;
    count += static_cast<double>(list.size());
  }
  for (size_t p = 0; p < expected.values.size(); ++p) {
    double distance = 0, norm = 0;
    for (size_t i = 0; i < expected.values[p].size(); ++i) {
      distance += std::pow(result.values[p][i] - expected.values[p][i], 2);
      norm += std::pow(expected.values[p][i], 2);
    }
    EXPECT_LE(
        tolerance::tensor_metric(std::sqrt(distance), std::sqrt(norm), std::sqrt(squares / count),
                                 static_cast<int64_t>(expected.values[p].size())),
        tolerance::kLayoutFp32)
        << what << ", parameter " << p;
  }
  for (size_t s = 0; s < 3; ++s) EXPECT_NEAR(result.norms[s] / expected.norms[s], 1, 5e-6) << what;
}

// Sharding must give the bits of plain replicas with as many ranks and instances.
void check_all(Method method, DType type, std::initializer_list<int> list) {
  for (const int ranks : list) {
    for (const int instances : {1, 2}) {
      if (ranks % instances != 0) continue;
      for (int micro_batches = 1; micro_batches <= 3; ++micro_batches) {
        Layout run{.method = method,
                   .type = type,
                   .ranks = ranks,
                   .instances = instances,
                   .micro_batches = micro_batches};
        const Result plain = result_of(run);
        if (ranks > 1 && type == DType::f32) {
          const Layout one{.method = method, .type = type, .micro_batches = ranks * micro_batches};
          expect_near(plain, result_of(one), run.str());
        }
        for (const Sharding sharding : kShardings) {
          for (const bool overlap : {false, true}) {
            run.sharding = sharding;
            run.overlap = overlap;
            run.bucket_elements = overlap && sharding < Sharding::gradients ? 20000 : 0;
            const Result result = result_of(run);
            if (sharding < Sharding::gradients || micro_batches == 1 || ranks == instances) {
              EXPECT_TRUE(result == plain) << run.str();
            } else if (type == DType::f32) {
              expect_near(result, plain, run.str());
            }
          }
        }
      }
    }
  }
}

TEST(DataParallelSteps, AdamOnUpToThreeRanks) { check_all(Method::adam, DType::f32, {1, 2, 3}); }
TEST(DataParallelSteps, AdamOnFourRanks) { check_all(Method::adam, DType::f32, {4}); }
TEST(DataParallelSteps, SgdOnUpToThreeRanks) { check_all(Method::sgd, DType::f32, {1, 2, 3}); }
TEST(DataParallelSteps, SgdOnFourRanks) { check_all(Method::sgd, DType::f32, {4}); }

TEST(DataParallelSteps, MasterWeightsAreDividedToo) {
  for (const DType type : {DType::bf16, DType::f16}) {
    Layout run{.type = type, .ranks = 3};
    const Result plain = result_of(run);
    for (const Sharding sharding : kShardings) {
      run.sharding = sharding;
      EXPECT_TRUE(result_of(run) == plain) << run.str();
    }
  }
}

TEST(DataParallelSteps, BucketsDoNotChangeTheBits) {
  Layout run{.ranks = 3, .micro_batches = 2};
  const Result plain = result_of(run);
  for (const int64_t elements : {1, 300, 17000, 50000}) {
    for (const bool overlap : {false, true}) {
      for (const Sharding sharding : {Sharding::none, Sharding::optimizer}) {
        run.sharding = sharding;
        run.overlap = overlap;
        run.bucket_elements = elements;
        EXPECT_TRUE(result_of(run) == plain) << run.str();
      }
    }
  }
  // The same check for layouts that reduce each micro-batch.
  run = {.ranks = 3, .micro_batches = 2, .sharding = Sharding::gradients};
  const Result each = result_of(run);
  for (const bool overlap : {false, true}) {
    run.overlap = overlap;
    for (const int64_t elements : {0, 1, 17000}) {
      run.bucket_elements = elements;
      EXPECT_TRUE(result_of(run) == each) << run.str();
    }
    run.sharding = Sharding::parameters;
    run.bucket_elements = 0;
    EXPECT_TRUE(result_of(run) == each) << run.str();
    run.sharding = Sharding::gradients;
  }
}

}  // namespace
}  // namespace megatron::optim
