// Each part of a step alone: passes, totals, times, the outcome; and the parts of a run around it.
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "comm/group.h"
#include "training/run_reporter.h"
#include "training/step_feed.h"
#include "training/trained_model.h"
#include "unit/training/small_settings.h"

namespace megatron::training {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(StepOutcome, FollowsFromLossNormAndScale) {
  const auto outcome = [](double loss, double norm, const optim::LossScale* scale, bool check) {
    return step_outcome(loss, norm, scale, check);
  };
  EXPECT_EQ(outcome(1, 1, nullptr, true), StepOutcome::updated);
  EXPECT_EQ(outcome(1, kInfinity, nullptr, true), StepOutcome::not_finite);
  EXPECT_EQ(outcome(kInfinity, 1, nullptr, false), StepOutcome::updated) << "nobody checks";
  const optim::LossScale high({.initial = 1024}), least({.initial = 1});
  EXPECT_EQ(outcome(1, kInfinity, &high, false), StepOutcome::overflow);
  EXPECT_EQ(outcome(kInfinity, 1, &high, true), StepOutcome::overflow) << "a lower scale may help";
  EXPECT_EQ(outcome(1, kInfinity, &least, true), StepOutcome::overflow) << "of the gradients only";
  EXPECT_EQ(outcome(kInfinity, 1, &least, true), StepOutcome::not_finite);
  EXPECT_EQ(outcome(1, 1, &high, true), StepOutcome::updated);
}

TEST(StepTimer, AddsWhatItsLevelAsksFor) {
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  StepTimer timer(runtime.stream(), 1);
  const auto take = [&](double report::StepTimes::* part, int64_t level) {
    const StepTimer::Block block(timer, part, level);
    const double begin = now_seconds();
    while (now_seconds() == begin) continue;
  };
  take(&report::StepTimes::forward, 2);
  EXPECT_EQ(timer.times().forward, 0);
  take(&report::StepTimes::norm, 1);
  const double once = timer.times().norm;
  EXPECT_GT(once, 0);
  take(&report::StepTimes::norm, 1);
  EXPECT_GT(timer.times().norm, once);
  timer.begin_step();
  EXPECT_EQ(timer.times().norm, 0);
}

class Parts : public ::testing::Test {
 protected:
  static models::Model definition() {
    models::ModelFlags flags = small_settings().shape;
    flags.hidden_dropout = flags.attention_dropout = 0;
    return models::model_from_flags(flags, 16);
  }
  static corpus::HostBatch batch_of(int32_t first) {
    corpus::HostBatch batch{.layout = {.sequences = 2, .length = 16}};
    for (int32_t i = 0; i < 32; ++i) {
      batch.tokens.push_back((first + i) % 100);
      batch.labels.push_back((first + i + 1) % 100);
      batch.positions.push_back(i % 16);
      batch.loss_mask.push_back(i % 4 == 3 ? 0 : 1);
    }
    batch.sample_ids = {first, first + 1};
    return batch;
  }

  std::unique_ptr<comm::Group> alone_ = comm::single();
  Runtime runtime_{{DeviceKind::reference, 0}, 1};
  TrainedModel model_{definition(), DType::f64, 1, {}, *alone_, runtime_, {}};
};

TEST_F(Parts, TotalsAreLossesTokensAndMetrics) {
  StepTotals totals(Metrics({{.name = "drops", .kind = MetricDefinition::Kind::count}}, true),
                    model_.ranks, runtime_);
  totals.make_room(2);
  const void* const sums = totals.metrics().sums().address();
  totals.make_room(3);
  EXPECT_EQ(totals.metrics().sums().address(), sums) << "recorded work knows it";
  totals.begin_step();
  for (int i = 0; i < 3; ++i) *totals.loss(i).data<double>() = 2 << i;
  *totals.metrics().sums().data<double>() = 5;
  const StepTotals::Sums all = totals.over_ranks(3, 7);
  EXPECT_EQ(all.loss, 14);
  EXPECT_EQ(all.counted, 7);
  ASSERT_EQ(all.metrics.size(), 1u);
  EXPECT_EQ(all.metrics[0].name, "drops");
  EXPECT_EQ(all.metrics[0].value, 5);
}

// In any order of a schedule, each micro-batch reports its loss, which equals that of an
// evaluation, and weights get their gradients.
TEST_F(Parts, PassesMakeLossesInAnyOrder) {
  model_.initialize(3);
  model_.step.data_parallel().parameters_changed();
  const std::vector<corpus::HostBatch> batches = {batch_of(5), batch_of(40)};
  std::vector<double> expected;
  model_.loss_pass.run(batches, [&](int, std::span<const LossSum> of_sequences) {
    LossSum sum;
    for (const LossSum& one : of_sequences) sum += one;
    expected.push_back(sum.sum);
  });
  StepTotals totals(Metrics({}, true), model_.ranks, runtime_);
  StepTimer timer(runtime_.stream(), 0);
  MicroBatchPass pass(model_.parts.chunks(), DType::f64, model_.ranks, runtime_,
                      {model_.step.options(), model_.step.data_parallel(), totals, timer,
                       model_.step.work_reporter()});
  using Kind = parallel::Action::Kind;
  for (const std::vector<int>& order : {std::vector{0, 1}, {1, 0}}) {
    model_.step.data_parallel().begin_step(2);
    totals.make_room(2);
    pass.begin_step(batches, 1, 0, false);
    EXPECT_FALSE(pass.action());
    for (const int micro_batch : order) {
      EXPECT_TRUE(pass.forward({Kind::forward, 0, micro_batch}, {}).empty());
      EXPECT_EQ(pass.action()->micro_batch, micro_batch);
      EXPECT_TRUE(pass.backward({Kind::backward, 0, micro_batch}, {}, true).empty());
    }
    pass.end_step();
    for (int i = 0; i < 2; ++i)
      EXPECT_NEAR(*totals.loss(i).data<double>(), expected[static_cast<size_t>(i)], 1e-9);
    EXPECT_NE(*totals.loss(0).data<double>(), *totals.loss(1).data<double>());
    for (const parallel::ParameterSpec* placed : model_.parts.chunks()[0]->parameters())
      EXPECT_TRUE(placed->parameter.uses.at(0).started) << placed->parameter.name;
    model_.step.data_parallel().finish();
  }
  EXPECT_EQ(pass.recorded().recorded, 0) << "on a CPU nothing is";
  EXPECT_EQ(pass.own_memory(MemoryClass::activations), 0);
}

TEST(RunCounts, StepsThatAreSkippedAreNotScheduled) {
  RunCounts counts =
      RunCounts::of({.consumed_samples = 30, .scheduled_samples = 20, .skipped_steps = 2});
  counts.add_step(10, false);
  counts.add_step(10, false);
  EXPECT_EQ(counts.consumed, 50);
  EXPECT_EQ(counts.scheduled, 20);
  EXPECT_EQ(counts.skipped, 4);
  EXPECT_EQ(counts.skipped_in_row, 2);
  counts.add_step(5, true);
  EXPECT_EQ(counts.consumed, 55);
  EXPECT_EQ(counts.scheduled, 25);
  EXPECT_EQ(counts.skipped, 4);
  EXPECT_EQ(counts.skipped_in_row, 0);
}

TEST(StepFeed, GivesWhatWasLookedAtOnceMore) {
  settings::TrainSettings s = small_settings();
  s.batch.train_iters = 3;
  s.batch.global_batch_size = 4;
  s.data.mock_data = true;
  const std::unique_ptr<comm::Group> alone = comm::single();
  const RunPlan plan = make_run_plan(s, *alone);
  const parallel::Ranks ranks({}, *alone);
  StepFeed feed(plan, 0, ranks), other(plan, 4, ranks);
  const auto tokens = [](std::span<const corpus::HostBatch> step) {
    std::vector<std::vector<int32_t>> all;
    for (const corpus::HostBatch& batch : step) all.push_back(batch.tokens);
    return all;
  };
  const auto first = tokens(feed.peek(0));
  EXPECT_EQ(first.size(), 2u);
  EXPECT_EQ(tokens(feed.read(0)), first);
  const auto second = tokens(feed.read(4));
  EXPECT_NE(second, first);
  EXPECT_EQ(tokens(other.read(4)), second) << "a run that goes on after the first step";
}

}  // namespace
}  // namespace megatron::training
