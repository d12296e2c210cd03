// Calls to the experts' ranks begin before the compute that they overlap with, and are waited for
// after it.
#include <gtest/gtest.h>

#include <functional>

#include "comm/doing.h"
#include "dist/ranks.h"
#include "kernels/observer.h"
#include "models/model.h"
#include "models/model_flags.h"
#include "selftest/passing_group.h"
#include "training/trained_model.h"

namespace megatron::training {
namespace {

constexpr int64_t kShared = 24, kLayers = 2;  // no other dimension has size kShared
constexpr int kMicroBatches = 4;

struct Call {
  std::string name, phase;
  int64_t micro_batch = -1;
  bool open = true;  // not yet waited for
  bool beside_shared_expert = false, beside_micro_batch = false;
};

// Records a rank's calls, each with the compute between its begin and its wait.
class CallRecord final : public kernels::Observer {
 public:
  CallRecord(Stream& stream, const comm::Doing& doing) : stream_(stream), doing_(doing) {
    stream_.watch(this);
  }
  ~CallRecord() override { stream_.watch(nullptr); }

  std::shared_ptr<Call> begin(std::string_view name) {
    const comm::Doing::State state = doing_.state();
    calls_.push_back(
        std::make_shared<Call>(Call{std::string(name), state.phase, state.micro_batch}));
    return calls_.back();
  }
  void before(const kernels::Call& kernel) override {
    const auto of_shared = [](const kernels::Operand& operand) {
      const Shape& shape = operand.tensor.shape();
      return shape.rank() == 2 && (shape[0] == kShared || shape[1] == kShared);
    };
    const bool shared = kernel.kernel == "gemm" && std::ranges::any_of(kernel.operands, of_shared);
    for (const std::shared_ptr<Call>& call : calls_) {
      if (!call->open) continue;
      call->beside_shared_expert |= shared;
      call->beside_micro_batch |= call->micro_batch != doing_.state().micro_batch;
    }
  }
  void after(const kernels::Call&) override {}

  const std::vector<std::shared_ptr<Call>>& calls() const { return calls_; }

 private:
  Stream& stream_;
  const comm::Doing& doing_;
  std::vector<std::shared_ptr<Call>> calls_;
};

// A group that makes each call only when it is waited for, like the slowest possible link.
class LateGroup final : public selftest::PassingGroup<LateGroup> {
 public:
  using PassingGroup::PassingGroup;

  void enter_calls_in(CallRecord* record) { record_ = record; }

  bool queued() const override { return true; }  // prevents threads from making the calls
  std::unique_ptr<comm::Group> split(int color, int key, int members) override {
    auto group = PassingGroup::split(color, key, members);
    static_cast<LateGroup&>(*group).enter_calls_in(record_);
    return group;
  }
  comm::Work make(comm::GroupCall call, Stream& stream) override {
    if (call.operation != comm::Operation::all_gather &&
        call.operation != comm::Operation::reduce_scatter)
      return PassingGroup::make(std::move(call), stream);
    return late(call.name, [call, this, &stream](std::string_view name) mutable {
      call.name = name;
      PassingGroup::make(std::move(call), stream).wait(stream);
    });
  }

 private:
  using Make = std::function<void(std::string_view name)>;

  class LateCall final : public Event::State {
   public:
    LateCall(std::shared_ptr<Call> call, Make make)
        : call_(std::move(call)), make_(std::move(make)) {}
    bool reached() override { return !call_->open; }
    void wait() override {
      if (std::exchange(call_->open, false)) std::exchange(make_, {})(call_->name);
    }

   private:
    const std::shared_ptr<Call> call_;
    Make make_;
  };

  comm::Work late(std::string_view name, Make make) {
    return {Event(std::make_shared<LateCall>(record_->begin(name), std::move(make))), {}};
  }

  CallRecord* record_ = nullptr;
};

corpus::HostBatch batch_of(int number) {
  corpus::HostBatch batch;
  batch.layout.sequences = 1;
  batch.layout.length = 8;
  for (int64_t t = 0; t < batch.layout.length; ++t) {
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

// Calls that send tokens and results in one step on two ranks with two experts each, and the sum of
// squares of rank 0's gradients.
struct Step {
  std::vector<Call> calls;
  double squares = 0;
};

Step step_of(bool overlapped, int parts) {
  Step result;
  testing::each_rank(2, [&](comm::Group& world, Runtime& runtime) {
    CallRecord record(runtime.stream(), *world.doing());
    LateGroup late(world);
    late.enter_calls_in(&record);
    ModelLayout layout;
    layout.ranks.layout.ep = 2;
    layout.ranks.async_experts = overlapped;
    layout.ranks.pipeline.parts = parts;
    TrainedModel model(small_model(), DType::f32, 1, layout, late, runtime, {});
    model.initialize(5);
    model.step.begin({});
    std::vector<corpus::HostBatch> batches;
    for (int m = 0; m < kMicroBatches; ++m)
      batches.push_back(batch_of(kMicroBatches * world.rank() + m));
    double divisor = 0;
    model.step.accumulate(batches, divisor);
    if (world.rank() != 0) return;
    for (const std::shared_ptr<Call>& call : record.calls())
      if (call->name.starts_with("expert tokens") || call->name.starts_with("expert results"))
        result.calls.push_back(*call);
    for (const parallel::Shard& shard : model.shards())
      for (const double x : to_doubles(shard.gradient)) result.squares += x * x;
  });
  EXPECT_EQ(result.calls.size(), size_t{4} * kLayers * kMicroBatches);
  return result;
}

TEST(OverlappedExperts, CallsWithoutOverlapAreWaitedForAtOnce) {
  for (const Call& call : step_of(false, 1).calls)
    EXPECT_FALSE(call.open || call.beside_shared_expert || call.beside_micro_batch) << call.name;
}

TEST(OverlappedExperts, BesideTheSharedExpert) {
  const Step step = step_of(true, 1);
  for (const Call& call : step.calls)
    EXPECT_TRUE(!call.open && call.beside_shared_expert && !call.beside_micro_batch) << call.name;
  EXPECT_EQ(step.squares, step_of(false, 1).squares);
}

// The first forward pass and the last backward pass have no other pass to overlap with.
TEST(OverlappedExperts, BesideAnotherMicroBatch) {
  const Step step = step_of(true, parallel::most_parts(kLayers));
  for (const Call& call : step.calls) {
    const bool alone = call.micro_batch == (call.phase == "forward" ? 0 : kMicroBatches - 1);
    EXPECT_FALSE(call.open) << call.name;
    EXPECT_EQ(call.beside_micro_batch, !alone)
        << call.name << " of micro-batch " << call.micro_batch;
  }
  EXPECT_EQ(step.squares, step_of(false, 1).squares);
}

}  // namespace
}  // namespace megatron::training
