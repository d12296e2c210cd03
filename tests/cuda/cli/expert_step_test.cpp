// A step of a model with experts: its copies to the host, metrics included, are as few as a dense
// model's. Also checks its message when it is recorded.
#include <gtest/gtest.h>

#include <cmath>

#include "device/cuda_plugin.h"
#include "models/model_flags.h"
#include "nn/expert_load.h"
#include "training/trained_model.h"

namespace megatron::training {
namespace {

constexpr int64_t kTokens = 16, kWords = 61, kExperts = 4, kLayers = 2;

models::ModelFlags dense() {
  return {.num_layers = kLayers, .hidden_size = 16, .num_attention_heads = 2, .vocab_size = kWords};
}

models::ModelFlags with_experts() {
  models::ModelFlags flags = dense();
  flags.moe.num_experts = kExperts;
  return flags;
}

corpus::HostBatch tokens_of(int64_t sample) {
  const auto n = static_cast<size_t>(kTokens);
  corpus::HostBatch batch{.layout = {.sequences = 1, .length = kTokens},
                          .loss_mask = std::vector<float>(n, 1)};
  batch.sample_ids = {sample};
  for (int64_t i = 0; i < kTokens; ++i) {
    batch.tokens.push_back(static_cast<int32_t>((7 * sample + 5 * i) % kWords));
    batch.positions.push_back(static_cast<int32_t>(i));
    batch.labels.push_back(static_cast<int32_t>((7 * sample + 5 * i + 5) % kWords));
  }
  return batch;
}

int64_t counted(const char* what) {
  return reinterpret_cast<int64_t (*)(const char*)>(cuda_symbol("shim_alive"))(what);
}

struct Copied {
  int64_t copies = 0, bytes = 0;
  size_t metrics = 0;
  RecordedCounts recorded;  // over all steps
};

// Trains on one GPU. recorded: records from the second step on.
struct Trained {
  Trained(const models::ModelFlags& flags, bool recorded)
      : model(models::model_from_flags(flags, kTokens), DType::f32, 3, {}, *alone, runtime,
              {.record_after = recorded ? std::optional<int64_t>(1) : std::nullopt}) {
    model.initialize(5);
    model.step.begin({});
  }

  const std::unique_ptr<comm::Group> alone = comm::single();
  Runtime runtime{{DeviceKind::cuda, 0}, 1};
  TrainedModel model;
};

// Copies in the last of three steps with two micro-batches each.
Copied last_step(const models::ModelFlags& flags, bool recorded) {
  Trained trained(flags, recorded);
  TrainedModel& model = trained.model;
  Copied last;
  for (int64_t step = 0; step < 3; ++step) {
    const std::vector<corpus::HostBatch> batches = {tokens_of(2 * step), tokens_of(2 * step + 1)};
    const int64_t copies = counted("copies to host"), bytes = counted("to host");
    const StepReport report = model.step.run(batches, {.learning_rate = 1e-2});
    last = {counted("copies to host") - copies, counted("to host") - bytes, report.metrics.size(),
            model.step.recorded()};
  }
  return last;
}

TEST(ExpertStep, CopiesAsOftenToTheHostAsADenseOne) {
  for (const bool recorded : {false, true}) {
    SCOPED_TRACE(recorded ? "recorded" : "launched");
    const Copied plain = last_step(dense(), recorded);
    ASSERT_GT(plain.copies, 0);
    const Copied loads = last_step(with_experts(), recorded);
    EXPECT_EQ(loads.copies, plain.copies);
    EXPECT_EQ(loads.bytes - plain.bytes, 8 * kLayers * (3 * kExperts + 4 + 2));
    EXPECT_EQ(loads.metrics, 2U);  // expert_load, router_entropy

    models::ModelFlags flags = with_experts();
    flags.moe.aux_loss_coeff = {"0.01"};
    flags.moe.z_loss_coeff = 1e-3;
    flags.moe.capacity_factor = 1;
    flags.moe.score = kernels::RouterScore::sigmoid;
    flags.moe.enable_expert_bias = true;
    const Copied all = last_step(flags, recorded);
    EXPECT_EQ(all.copies, plain.copies);
    EXPECT_GE(all.metrics, 5U);
  }
}

// Losses and every layer's metrics in steps with changing numbers of micro-batches.
std::vector<double> numbers_of_steps(bool recorded) {
  models::ModelFlags flags = with_experts();
  flags.moe.aux_loss_coeff = {"0.01"};
  Trained trained(flags, recorded);
  TrainedModel& model = trained.model;
  std::vector<double> numbers;
  int64_t sample = 0;
  for (const int64_t count : {2, 2, 3, 5, 3, 2}) {
    std::vector<corpus::HostBatch> batches;
    for (int64_t i = 0; i < count; ++i) batches.push_back(tokens_of(sample++));
    const StepReport report = model.step.run(batches, {.learning_rate = 1e-2});
    numbers.push_back(report.loss);
    for (const MetricValue& metric : report.metrics) {
      numbers.push_back(metric.value);
      for (const MetricValue::Layer& layer : metric.layers) numbers.push_back(layer.value);
    }
  }
  EXPECT_EQ(model.step.recorded().replayed > 0, recorded);
  return numbers;
}

TEST(ExpertStep, LogsTheSameWhenItIsRecordedAndBatchesChange) {
  const std::vector<double> launched = numbers_of_steps(false);
  for (const double number : launched) EXPECT_TRUE(std::isfinite(number));
  EXPECT_EQ(numbers_of_steps(true), launched);
}

// With a capacity, shapes are fixed too: as many micro-batches are recorded and replayed as with a
// dense model.
TEST(ExpertStep, PaddedToItsCapacityIsOneGraphAMicroBatch) {
  models::ModelFlags flags = with_experts();
  flags.moe.capacity_factor = 1;
  flags.moe.pad_to_capacity = true;
  const Copied padded = last_step(flags, true), plain = last_step(dense(), true);
  EXPECT_GT(padded.recorded.replayed, 0);
  EXPECT_EQ(padded.recorded.recorded, plain.recorded.recorded);
  EXPECT_EQ(padded.recorded.replayed, plain.recorded.replayed);
  EXPECT_EQ(padded.copies, plain.copies);
}

}  // namespace
}  // namespace megatron::training
