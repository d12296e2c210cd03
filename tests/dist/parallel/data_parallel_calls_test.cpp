// Calls that data parallelism makes, their order, and its memory.
#include <chrono>
#include <thread>

#include "base/error.h"
#include "comm/traffic.h"
#include "dist/parallel/toy_stage.h"

namespace megatron::parallel {
namespace {

using comm::Group;
using testing::each_rank;
using testing::kShardings;
using testing::toy_parameters;
using testing::ToyGroups;
using testing::ToyParameter;
using testing::ToyStage;

// Records the calls of one of two ranks. The other rank holds nothing.
class Recorder final : public Group {
 public:
  explicit Recorder(std::vector<std::string>& calls, std::string prefix = "")
      : calls_(calls), prefix_(std::move(prefix)) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  comm::Work make(comm::GroupCall call, Stream&) override {
    calls_.push_back(prefix_ + std::string(call.name));
    return {Event(), call.tensors()};
  }
  void barrier(std::string_view) override {}
  std::unique_ptr<Group> split(int, int, int) override { return comm::single(); }

 private:
  std::vector<std::string>& calls_;
  std::string prefix_;
};

std::vector<std::string> gradient_calls(std::initializer_list<int> buckets) {
  std::vector<std::string> names;
  for (const int b : buckets) names.push_back(fmt::format("async gradients, bucket {}", b));
  return names;
}

TEST(DataParallelCalls, ABucketIsReducedWhenItIsFinalAndInOrder) {
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  for (const Sharding sharding : {Sharding::none, Sharding::optimizer}) {
    std::vector<std::string> calls;
    Recorder group(calls), async(calls, "async ");
    std::vector<ToyParameter> list;
    for (int p = 0; p < 4; ++p) list.push_back({fmt::format("p{}", p), {8}, {0}});
    list[0].uses = 2;
    ToyStage stage(runtime, list);
    DataParallel dp(stage.placed(), {}, {.dense = {.shards = &group, .async = &async}}, runtime,
                    {.sharding = sharding, .bucket_elements = 1, .overlap_reduce = true});
    EXPECT_EQ(dp.buckets(), 4);  // 3, 2, 1, 0
    const auto give = [&](size_t p, size_t use, int m) {
      stage.give(dp, stage[p].parameter, use, m, 0);
    };
    dp.begin_step(2);
    for (const size_t p : {3, 2, 1, 0}) give(p, 0, 0);
    give(0, 1, 0);
    EXPECT_TRUE(calls.empty());  // not before the last micro-batch
    give(2, 0, 1);
    EXPECT_TRUE(calls.empty());  // bucket 0 comes first
    give(3, 0, 1);
    EXPECT_EQ(calls, gradient_calls({0, 1}));
    give(0, 1, 1);
    give(0, 0, 1);
    EXPECT_EQ(calls, gradient_calls({0, 1}));  // parameter 1 has no gradient
    dp.finish();
    EXPECT_EQ(calls, gradient_calls({0, 1, 2, 3}));
  }
}

TEST(DataParallelCalls, NothingRunsBesideWithoutOverlap) {
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  for (const Sharding sharding : kShardings) {
    for (const bool overlap : {false, true}) {
      std::vector<std::string> calls;
      Recorder group(calls), async(calls, "async ");
      ToyStage stage(runtime, toy_parameters());
      DataParallel dp(stage.placed(), stage.spans(), {.dense = {.shards = &group, .async = &async}},
                      runtime,
                      {.sharding = sharding, .overlap_reduce = overlap, .overlap_gather = overlap});
      stage.fill(dp.shards());
      dp.parameters_changed();
      dp.begin_step(2);
      for (int m = 0; m < 2; ++m) stage.run(dp, m);
      dp.finish();
      EXPECT_FALSE(calls.empty());
      for (const std::string& call : calls)
        EXPECT_EQ(call.starts_with("async "), overlap) << call << " " << name(sharding);
    }
  }
}

// A pass gathers each span once. A span that is still present is not gathered again.
TEST(DataParallelCalls, SpansAreGatheredOnceAPass) {
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  for (const bool overlap : {false, true}) {
    std::vector<std::string> calls;
    Recorder group(calls);
    ToyStage stage(runtime, toy_parameters());
    DataParallel dp(stage.placed(), stage.spans(), {.dense = {.shards = &group}}, runtime,
                    {.sharding = Sharding::parameters, .overlap_gather = overlap});
    stage.fill(dp.shards());
    dp.parameters_changed();
    for (int step = 0; step < 2; ++step) {
      calls.clear();
      dp.begin_step(1);
      stage.run(dp, 0);
      std::erase_if(calls, [](const std::string& c) { return !c.starts_with("parameters"); });
      // Up: embedding {6, 5}, layers {4}, {3, 2}, {1}, head {0, 6}; down again.
      std::vector<int> expected;
      if (step == 0 && !overlap) expected = {5, 6, 4, 2, 3, 1, 0, 6, 1, 2, 3, 4, 5, 6};
      if (step == 1 && !overlap) expected = {4, 2, 3, 1, 0, 6, 1, 2, 3, 4, 5, 6};
      // One more span is held: the next one.
      if (step == 0 && overlap) expected = {4, 2, 3, 1, 0, 6, 2, 3, 4, 5, 6};
      if (step == 1 && overlap) expected = {2, 3, 1, 0, 6, 2, 3, 4, 5, 6};
      std::vector<std::string> names;
      for (const int b : expected) names.push_back(fmt::format("parameters, bucket {}", b));
      EXPECT_EQ(calls, names) << "step " << step << " overlap " << overlap;
      dp.finish();
    }
  }
}

// --- Timing.

using Milliseconds = std::chrono::duration<double, std::milli>;

// Every call is delayed before it begins.
class Delayed final : public Group {
 public:
  Delayed(std::unique_ptr<Group> group, Milliseconds delay)
      : group_(std::move(group)), delay_(delay) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  comm::Work make(comm::GroupCall call, Stream& stream) override {
    std::this_thread::sleep_for(delay_);
    return group_->make(std::move(call), stream);
  }
  void barrier(std::string_view call) override { group_->barrier(call); }
  std::unique_ptr<Group> split(int color, int key, int members) override {
    return group_->split(color, key, members);
  }

 private:
  std::unique_ptr<Group> group_;
  const Milliseconds delay_;
};

// Layers of equal size, as with matrix products: backward takes as long as a call, and forward half
// of that. Returns the seconds of a step and its update.
double step_seconds(Sharding sharding, bool overlap, Milliseconds delay) {
  std::vector<ToyParameter> list;
  std::vector<std::string> spans;
  for (int s = 0; s < 8; ++s) {
    spans.push_back(fmt::format("layers.{}", s));
    list.push_back({fmt::format("layers.{}.weight", s), {100}, {s}});
  }
  double seconds = 0;
  each_rank(2, DeviceKind::cpu, [&](Group& world, Runtime& runtime) {
    ToyStage stage(runtime, list, DType::f32, spans);
    const ToyGroups groups(world, 1, [&](std::unique_ptr<Group> group) {
      return std::make_unique<Delayed>(std::move(group), delay);
    });
    DataParallel dp(stage.placed(), stage.spans(), groups.groups(), runtime,
                    {.sharding = sharding,
                     .bucket_elements = sharding == Sharding::parameters ? 0 : 100,
                     .overlap_reduce = overlap,
                     .overlap_gather = overlap});
    stage.fill(dp.shards());
    stage.at_work = [&](size_t, Pass pass) {
      if (pass == Pass::forward) std::this_thread::sleep_for(delay / 2);
      if (pass == Pass::backward) std::this_thread::sleep_for(delay);
    };
    const auto begin = std::chrono::steady_clock::now();
    dp.parameters_changed();
    dp.begin_step(1);
    stage.run(dp, world.rank());
    dp.finish();
    world.barrier("end");
    if (world.rank() == 0)
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  });
  return seconds;
}

// Delays grow until they outweigh the time that a busy machine adds to each call.
TEST(DataParallelTime, CallsOverlapTheCompute) {
  for (const Sharding sharding : kShardings) {
    double share = 1;
    for (Milliseconds delay{15}; share >= 0.7 && delay.count() <= 1000; delay *= 4)
      share = step_seconds(sharding, true, delay) / step_seconds(sharding, false, delay);
    EXPECT_LT(share, 0.7) << name(sharding);
  }
}

// --- Memory.

struct Bytes {
  int64_t parameters = 0, gradients = 0;
};

// Peak memory over a step of two micro-batches.
Bytes high_water(Group& shards, Runtime& runtime, Sharding sharding, bool overlap,
                 const std::vector<ToyParameter>& list, const std::vector<std::string>& spans) {
  std::unique_ptr<Group> async;
  if (runtime.device().has_data())
    async = comm::async(shards.split(0, shards.rank(), shards.size()));
  ToyStage stage(runtime, list, DType::f32, spans);
  DataParallel dp(stage.placed(), stage.spans(),
                  {.dense = {.shards = &shards, .async = async.get()}}, runtime,
                  {.sharding = sharding, .overlap_reduce = overlap, .overlap_gather = overlap});
  if (runtime.device().has_data()) stage.fill(dp.shards());
  Bytes bytes;
  for (int step = 0; step < 3; ++step) {
    dp.parameters_changed();
    dp.begin_step(2);
    for (int m = 0; m < 2; ++m) stage.run(dp, m);
    dp.finish();
    const Bytes now = {runtime.arena(MemoryClass::parameters).high_water(),
                       runtime.arena(MemoryClass::gradients).high_water()};
    if (step > 0) {  // memory does not grow after the first step
      EXPECT_EQ(now.parameters, bytes.parameters);
      EXPECT_EQ(now.gradients, bytes.gradients);
    }
    bytes = now;
  }
  return bytes;
}

// Eight layers of 4 x 16384 elements: nothing is padded.
TEST(DataParallelMemory, FallsAsTheFormulasSay) {
  constexpr int64_t kLayer = 4 * 16384, kAll = 8 * kLayer;
  std::vector<ToyParameter> list;
  std::vector<std::string> spans;
  for (int s = 0; s < 8; ++s) {
    spans.push_back(fmt::format("layers.{}", s));
    list.push_back({fmt::format("layers.{}.weight", s), {kLayer}, {s}});
  }
  for (const int ranks : {1, 2, 4}) {
    for (const bool overlap : {false, true}) {
      each_rank(ranks, DeviceKind::cpu, [&](Group& world, Runtime&) {
        const auto check = [&](Sharding sharding, int64_t parameters, int64_t gradients) {
          Runtime own({DeviceKind::cpu, 0}, 1), meta({DeviceKind::meta, 0}, 1);
          const Bytes bytes = high_water(world, own, sharding, overlap, list, spans);
          EXPECT_EQ(bytes.parameters, 4 * parameters) << name(sharding) << " " << ranks;
          EXPECT_EQ(bytes.gradients, 4 * gradients) << name(sharding) << " " << ranks;
          const auto planned_ranks = comm::simulated(world.rank(), ranks);
          const Bytes planned = high_water(*planned_ranks, meta, sharding, overlap, list, spans);
          EXPECT_EQ(planned.parameters, bytes.parameters);
          EXPECT_EQ(planned.gradients, bytes.gradients);
        };
        const int64_t buckets = ranks == 1 ? 0 : (overlap ? 2 : 1) * kLayer;
        check(Sharding::none, kAll, kAll);
        check(Sharding::optimizer, kAll, kAll);
        check(Sharding::gradients, kAll, kAll / ranks + buckets);
        check(Sharding::parameters, kAll / ranks + buckets, kAll / ranks + buckets);
      });
    }
  }
}

}  // namespace
}  // namespace megatron::parallel
