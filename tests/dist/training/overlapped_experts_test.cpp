// Calls to the ranks of experts, over links that take time, overlapped with compute that takes
// time.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/clock.h"
#include "dist/delaying.h"
#include "dist/ranks.h"
#include "kernels/observer.h"
#include "models/model.h"
#include "models/model_flags.h"
#include "training/trained_model.h"

namespace megatron::training {
namespace {

constexpr int64_t kShared = 24, kLayers = 2;  // kShared: no other size is
constexpr int kMicroBatches = 12;
constexpr std::chrono::milliseconds kCall{3};

enum class Beside { shared_expert, micro_batch };

// What is computed beside calls takes time in which its core is free: products of the shared
// expert; or the experts' products, and each pass through a layer besides, together as long as the
// layer's calls.
class SlowCompute final : public kernels::Observer, public SpanListener {
 public:
  SlowCompute(Beside beside, Stream& stream) : beside_(beside), stream_(stream) {
    stream_.watch(this);
  }
  ~SlowCompute() override { stream_.watch(nullptr); }

  void before(const kernels::Call& call) override {
    const auto of_shared = [](const kernels::Operand& operand) {
      const Shape& shape = operand.tensor.shape();
      return shape.rank() == 2 && (shape[0] == kShared || shape[1] == kShared);
    };
    if (beside_ == Beside::micro_batch) {
      if (call.kernel.starts_with("grouped")) pause(0.3);
    } else if (call.kernel == "gemm" && std::ranges::any_of(call.operands, of_shared)) {
      pause(1);
    }
  }
  void after(const kernels::Call&) override {}
  void enter(const Span& span, Pass) override {
    if (beside_ == Beside::micro_batch && span.name.starts_with("layers.")) pause(2.6);
  }
  void leave(const Span&, Pass) override {}

 private:
  static void pause(double calls) { std::this_thread::sleep_for(calls * kCall); }

  Beside beside_;
  Stream& stream_;
};

corpus::HostBatch batch_of(int number) {
  corpus::HostBatch batch;
  batch.sequences = 1;
  batch.length = 8;
  for (int64_t t = 0; t < batch.length; ++t) {
    batch.tokens.push_back(static_cast<int32_t>((3 * t + number) % 17));
    batch.labels.push_back(static_cast<int32_t>((5 * t + number) % 17));
    batch.positions.push_back(static_cast<int32_t>(t));
    batch.loss_mask.push_back(1);
  }
  batch.sample_ids = {number};
  return batch;
}

models::Model small_model() {
  models::ModelFlags flags;
  flags.num_layers = kLayers;
  flags.hidden_size = 16;
  flags.num_attention_heads = 2;
  flags.vocab_size = 17;
  flags.ffn_hidden_size = 32;
  flags.moe.num_experts = 4;
  flags.moe.shared_ffn = kShared;
  return models::model_from_flags(flags, 8);
}

// Loss and gradient norm of one step on two ranks that hold two experts each.
std::pair<double, double> step_of(Beside beside, bool overlapped) {
  double seconds = 0, norm = 0;
  testing::each_rank(2, [&](comm::Group& world, Runtime& runtime) {
    testing::Delaying slow(world, kCall);
    ModelLayout layout;
    layout.ranks.layout.ep = 2;
    layout.ranks.async_experts = overlapped;
    if (overlapped && beside == Beside::micro_batch)
      layout.ranks.pipeline.parts = parallel::most_parts(kLayers);
    SlowCompute compute(beside, runtime.stream());
    StepOptions options;
    options.spans = &compute;
    TrainedModel model(small_model(), DType::f32, 1, layout, slow, runtime, options);
    model.initialize(5);
    model.step.begin({});
    std::vector<corpus::HostBatch> batches;
    for (int m = 0; m < kMicroBatches; ++m)
      batches.push_back(batch_of(kMicroBatches * world.rank() + m));
    double divisor = 0;
    world.barrier("begin");
    const double begin = now_seconds();
    model.step.accumulate(batches, divisor);
    world.barrier("end");
    if (world.rank() != 0) return;
    seconds = now_seconds() - begin;
    for (const parallel::Shard& shard : model.shards())
      for (const double x : to_doubles(shard.gradient)) norm += x * x;
  });
  return {seconds, norm};
}

// An attempt in which the machine had other work proves nothing, so there are many.
void expect_share(Beside beside) {
  double best = 1;
  for (int attempt = 0; attempt < 12 && best >= 0.7; ++attempt) {
    const auto [beside_compute, norm] = step_of(beside, true);
    const auto [waited, expected] = step_of(beside, false);
    EXPECT_EQ(norm, expected);
    best = std::min(best, beside_compute / waited);
    fmt::print("{:.1f} ms overlapped, {:.1f} ms without\n", 1e3 * beside_compute, 1e3 * waited);
  }
  EXPECT_LT(best, 0.7);
}

TEST(OverlappedExperts, BesideAnotherMicroBatch) { expect_share(Beside::micro_batch); }

TEST(OverlappedExperts, BesideTheSharedExpert) { expect_share(Beside::shared_expert); }

}  // namespace
}  // namespace megatron::training
