// A step with recorded micro-batches while other work on the device allocates and keeps memory
// between steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <vector>

#include "base/error.h"
#include "comm/gpu/group.h"
#include "comm/gpu/staged.h"
#include "comm/threads.h"
#include "device/cuda_plugin.h"
#include "training/trained_model.h"

namespace megatron::training {
namespace {

constexpr int64_t kVocabulary = 61, kLength = 16;

models::Model tiny() {
  return models::model_from_flags(
      {.num_layers = 1, .hidden_size = 16, .num_attention_heads = 2, .vocab_size = kVocabulary},
      kLength);
}

corpus::HostBatch batch_of(int64_t sample) {
  const auto n = static_cast<size_t>(kLength);
  corpus::HostBatch batch{.layout = {.sequences = 1, .length = kLength},
                          .loss_mask = std::vector<float>(n, 1)};
  batch.sample_ids = {sample};
  for (int64_t i = 0; i < kLength; ++i) {
    batch.tokens.push_back(static_cast<int32_t>((7 * sample + 5 * i) % kVocabulary));
    batch.positions.push_back(static_cast<int32_t>(i));
    batch.labels.push_back(static_cast<int32_t>((7 * sample + 5 * i + 5) % kVocabulary));
  }
  return batch;
}

// Makes steps of two micro-batches; the first step is a warm-up.
class Trial {
 public:
  explicit Trial(bool recorded) : Trial(recorded, nullptr) {}
  // Divides the matrices among `ranks`, each with its own GPU.
  Trial(bool recorded, comm::Group* ranks)
      : world_(ranks == nullptr ? *alone_ : *ranks),
        runtime({DeviceKind::cuda, world_.rank()}, 1),
        model(definition_, DType::f32, 3, layout(world_), world_, runtime, options(recorded)) {
    model.initialize(5);
    model.step.begin({});
  }
  StepReport step() {
    const std::vector<corpus::HostBatch> batches = {batch_of(2 * steps_), batch_of(2 * steps_ + 1)};
    ++steps_;
    return model.step.run(batches, {.learning_rate = 1e-2});
  }
  RecordedCounts counts() const { return model.step.recorded(); }
  Arena& activations() { return runtime.arena(MemoryClass::activations); }
  // Allocates a block in the middle of the steps' memory and fills it with NaNs.
  std::shared_ptr<Storage> take() {
    auto block = activations().allocate(activations().high_water() / 2, "of other work");
    cuda_plugin().fill(block->data(), 0xff, block->bytes(), runtime.stream());
    return block;
  }

 private:
  static StepOptions options(bool recorded) {
    StepOptions options;
    if (recorded) options.record_after = 1;
    return options;
  }
  static ModelLayout layout(const comm::Group& ranks) {
    ModelLayout layout;
    layout.ranks.layout.tp = ranks.size();
    layout.ranks.async = true;
    return layout;
  }
  models::Model definition_ = tiny();
  const std::unique_ptr<comm::Group> alone_ = comm::single();
  comm::Group& world_;
  int64_t steps_ = 0;

 public:
  Runtime runtime;
  TrainedModel model;
};

bool same(const StepReport& a, const StepReport& b) {
  return a.loss == b.loss && a.gradient_norm == b.gradient_norm && a.counted == b.counted;
}

TEST(RecordedStep, OtherWorkMayHaveTheMemoryBetween) {
  Trial plain(false), recorded(true);
  const int64_t mark = [&] {
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(same(recorded.step(), plain.step()));
    return recorded.activations().high_water();
  }();
  EXPECT_EQ(recorded.counts().recorded, 2);
  recorded.take();
  EXPECT_TRUE(same(recorded.step(), plain.step()));
  EXPECT_EQ(recorded.counts().recorded, 2);
  EXPECT_EQ(recorded.counts().replayed, 4);
  EXPECT_EQ(recorded.activations().high_water(), mark);
  for (const parallel::Shard& shard : recorded.model.shards())
    for (const Parameter::Use& use : shard.placed->parameter.uses)
      EXPECT_EQ(use.micro_batches, 2) << shard.placed->parameter.name;
}

TEST(RecordedStep, IsRecordedAnewWhereOtherWorkKeepsTheMemory) {
  Trial plain(false), recorded(true);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(same(recorded.step(), plain.step()));
  const std::shared_ptr<Storage> kept = recorded.take();
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(same(recorded.step(), plain.step()));
  EXPECT_EQ(recorded.counts().recorded, 4);  // both micro-batches, once each
  EXPECT_EQ(recorded.counts().replayed, 6);
  std::vector<unsigned char> bytes(static_cast<size_t>(kept->bytes()));
  cuda_plugin().copy_now(bytes.data(), kept->data(), kept->bytes(), kept->device());
  EXPECT_TRUE(std::ranges::all_of(bytes, [](unsigned char b) { return b == 0xff; }));
}

// --- Two tensor-parallel ranks with a GPU each.

[[maybe_unused]] const int kDevices = ::setenv("CUDA_SHIM_DEVICES", "4", 1);

void two_ranks(const std::function<void(comm::Group&)>& body,
               comm::GpuBackend backend = comm::GpuBackend::nccl) {
  comm::run_ranks(
      2,
      [&](comm::Group& ranks) {
        std::unique_ptr<comm::Group> made;
        body(comm::for_device(ranks, {DeviceKind::cuda, ranks.rank()}, made, backend));
      },
      20);
}

// The parts of one recording are launched together: if one rank must record again, both do.
TEST(RecordedStepOfRanks, AllRecordAnewWhereOneMust) {
  two_ranks([](comm::Group& ranks) {
    Trial plain(false, &ranks), recorded(true, &ranks);
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(same(recorded.step(), plain.step()));
    EXPECT_EQ(recorded.counts().recorded, 2);
    const std::shared_ptr<Storage> kept = ranks.rank() == 1 ? recorded.take() : nullptr;
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(same(recorded.step(), plain.step()));
    EXPECT_EQ(recorded.counts().recorded, 4);
    EXPECT_EQ(recorded.counts().replayed, 6);
  });
}

// No rank hangs, although recorded calls hold the communicators.
TEST(RecordedStepOfRanks, ARankThatFailsEndsTheOther) {
  std::atomic<int> called = 0;
  const auto fails = [&] {
    two_ranks([&](comm::Group& ranks) {
      Trial recorded(true, &ranks);
      for (int i = 0; i < 3; ++i) recorded.step();
      if (ranks.rank() == 1) fail("no more");
      try {
        for (int i = 0; i < 3; ++i) recorded.step();
      } catch (const Error&) {
        ++called;
        throw;
      }
    });
  };
  EXPECT_THROW(fails(), Error);
  EXPECT_EQ(called, 1);
}

TEST(RecordedStepOfRanks, IsRefusedThroughHostMemory) {
  std::atomic<int> refused = 0;
  const auto try_it = [&](comm::Group& ranks) {
    try {
      Trial recorded(true, &ranks);
    } catch (const Error& error) {
      refused += std::string(error.what()).find("host memory") != std::string::npos ? 1 : 0;
    }
  };
  two_ranks(try_it, comm::GpuBackend::gloo);
  EXPECT_EQ(refused, 2);
}

class Counting final : public StepListener {
 public:
  void enter(const Span&, Pass) override { ++spans; }
  void leave(const Span&, Pass) override {}
  int spans = 0;
};

// A listener is called for every span.
TEST(RecordedStep, IsMadeAsEverWhileSomebodyListens) {
  Trial plain(false), recorded(true);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(same(recorded.step(), plain.step()));
  Counting one, other;
  recorded.model.step.listen(&one);
  plain.model.step.listen(&other);
  EXPECT_TRUE(same(recorded.step(), plain.step()));
  EXPECT_GT(one.spans, 0);
  EXPECT_EQ(one.spans, other.spans);
  EXPECT_EQ(recorded.counts().replayed, 2);
  recorded.model.step.listen(nullptr);
  EXPECT_TRUE(same(recorded.step(), plain.step()));
  EXPECT_EQ(recorded.counts().replayed, 4);
  EXPECT_EQ(recorded.counts().recorded, 2);
}

}  // namespace
}  // namespace megatron::training
