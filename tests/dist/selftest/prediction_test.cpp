// Multi-token prediction has the results of one rank in other layouts: gradients, parameters, and
// the losses, acceptances and norms of the log. Depths may have a stage of their own.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/tolerances.h"
#include "selftest/experiment.h"

namespace megatron::selftest {
namespace {

using parallel::ScheduleKind;
using Granularity = models::RecomputeOptions::Granularity;

// Two depths behind four layers, with few tokens, so that some labels are accepted.
models::Model predicting(bool tied, bool detached) {
  TinyModel tiny = predicting_model();
  tiny.flags.num_layers = 4;
  tiny.flags.vocab_size = 12;
  tiny.flags.untie = !tied;
  tiny.flags.mtp_detach_heads = detached;
  return tiny.model();
}

Experiment prediction_experiment(const models::Model& model, DeviceKind device, DType type,
                                 const Environment& environment) {
  return {model, device, type, type, settings::LossScope::token, 4, 12, environment, {}, true};
}

// The last stage, or one of the last two, has the loss alone.
std::vector<Layout> stages_of_depths() {
  const auto placed = [](const std::string& layout) {
    return parallel::LayerPlacement{.layout = layout};
  };
  return {
      {.pipeline = {.stages = 2}, .layers = placed("Ettttmm|L"), .micro_batch = 1},
      {.pipeline = {.stages = 3}, .layers = placed("Ett|ttmm|L"), .micro_batch = 1},
      {.pipeline = {.stages = 4}, .layers = placed("Ett|tt|mm|L"), .micro_batch = 1},
      {.pipeline = {.kind = ScheduleKind::interleaved, .stages = 2, .chunks = 3},
       .layers = placed("Et|tt|t||mm|L"),
       .micro_batch = 1},
      {.pipeline = {.kind = ScheduleKind::zero_bubble_h1, .stages = 3},
       .layers = placed("Ettt|tmm|L"),
       .micro_batch = 1},
      {.pipeline = {.kind = ScheduleKind::zero_bubble_v, .stages = 2, .chunks = 2},
       .layers = placed("Ett|tt|mm|L"),
       .micro_batch = 1},
  };
}

void expect_same(const Experiment& all, const std::vector<Layout>& layouts, double bound,
                 const std::string& metric, const std::vector<optim::Method>& methods) {
  const Outcome one = all.run({.micro_batch = 1}, methods);
  ASSERT_TRUE(one.metrics.contains(metric));
  EXPECT_GT(std::ranges::max(one.metrics.at(metric)), 0) << metric;
  for (const Layout& layout : layouts) {
    Report report(layout.str());
    compare_outcomes(layout.str(), all.run(layout, methods), one, bound, report);
    EXPECT_TRUE(report.passed()) << report.text();
  }
}

TEST(Predictions, OfStagesOfTheirOwnHaveTheBitsOfOneStage) {
  const Environment environment;
  for (const bool tied : {true, false})
    expect_same(
        prediction_experiment(predicting(tied, false), DeviceKind::cpu, DType::f32, environment),
        stages_of_depths(), 0, "mtp_1 acceptance", {optim::Method::adam});
}

TEST(Predictions, GiveWhatOneRankGives) {
  const Environment environment;
  const parallel::LayerPlacement apart = {.layout = "Etttt|mm|L"};
  const std::vector<Layout> layouts = {
      {.tp = 2, .sequence = true, .pipeline = {.stages = 3}, .layers = apart, .micro_batch = 2},
      {.dp = 2,
       .pipeline = {.stages = 3},
       .layers = apart,
       .sharding = parallel::Sharding::parameters,
       .overlap = true,
       .micro_batch = 1},
      {.cp = 2,
       .pipeline = {.stages = 3},
       .layers = apart,
       .recompute = {.granularity = Granularity::full},
       .micro_batch = 2}};
  expect_same(prediction_experiment(predicting(true, false), DeviceKind::reference, DType::f64,
                                    environment),
              layouts, tolerance::kLayoutFp64, "mtp_2 acceptance", {optim::Method::sgd});
}

// Detached depths are clipped by themselves; where they are does not change either norm.
TEST(Predictions, DetachedHaveANormOfTheirOwn) {
  const Environment environment;
  expect_same(
      prediction_experiment(predicting(true, true), DeviceKind::reference, DType::f64, environment),
      {{.pipeline = {.stages = 3}, .layers = {.layout = "Ett|ttmm|L"}, .micro_batch = 2},
       {.tp = 2, .dp = 2, .sharding = parallel::Sharding::parameters, .micro_batch = 2}},
      tolerance::kLayoutFp64, "mtp grad norm", {optim::Method::sgd});
}

}  // namespace
}  // namespace megatron::selftest
