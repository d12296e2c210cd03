// An auxiliary loss and a count in every layer, in several layouts: the values that the step
// reports and the gradients equal those of one rank.
#include <gtest/gtest.h>

#include "base/tolerances.h"
#include "selftest/experiment.h"
#include "toy_model.h"

namespace megatron::selftest {
namespace {

TinyModel four_layers() {
  TinyModel tiny = tiny_models().at(1);
  tiny.flags.num_layers = 4;
  return tiny;
}

Outcome outcome_of(const models::Model& model, const Layout& layout) {
  const Environment environment;
  const Experiment experiment(model, DeviceKind::reference, DType::f64, DType::f64,
                              settings::LossScope::token, 8, 8, environment);
  return experiment.run(layout, {optim::Method::sgd});
}
Outcome one_rank(const models::Model& model) { return outcome_of(model, {.micro_batch = 2}); }

// Rows vary how a report is divided (tokens, stages and their chunks, replicas, micro-batches) and
// how often forward runs. slow/selftest covers every row of the matrix.
TEST(AuxiliaryLoss, IsThatOfOneRankInEveryKindOfLayout) {
  const models::Model model = testing::toy_model()(four_layers().model());
  const models::RecomputeOptions recompute{.granularity =
                                               models::RecomputeOptions::Granularity::full};
  const Outcome expected = one_rank(model);
  for (const Layout& layout :
       {Layout{.tp = 2, .recompute = recompute, .micro_batch = 8},
        Layout{.tp = 2, .sequence = true, .pipeline = {.stages = 2}, .micro_batch = 2},
        Layout{.pipeline = {.kind = parallel::ScheduleKind::interleaved, .stages = 2, .chunks = 2},
               .recompute = recompute,
               .micro_batch = 2},
        Layout{.dp = 2, .sharding = parallel::Sharding::parameters, .micro_batch = 1}}) {
    Report report(layout.str());
    compare_outcomes(layout.str(), outcome_of(model, layout), expected, tolerance::kLayoutFp64,
                     report);
    EXPECT_TRUE(report.passed()) << report.text();
    EXPECT_NE(report.text().find("square"), std::string::npos) << report.text();
  }
}

// The losses and biases of the model's own experts are unchanged.
TEST(AuxiliaryLoss, StandsBesideThoseOfExperts) {
  TinyModel tiny = four_layers();
  tiny.flags.moe.num_experts = 4;
  tiny.flags.moe.ffn_hidden_size = 24;
  tiny.flags.moe.score = kernels::RouterScore::sigmoid;
  tiny.flags.moe.enable_expert_bias = true;
  tiny.flags.moe.load_balancing_type = {"seq_aux_loss"};
  tiny.flags.moe.aux_loss_coeff = {"0.1"};
  const models::Model model = testing::toy_model()(tiny.model());
  const Outcome expected = one_rank(model);
  ASSERT_TRUE(expected.metrics.contains("square") && expected.metrics.contains("seq_aux_loss"));
  Report report("experts");
  compare_outcomes("EP 2", outcome_of(model, {.dp = 2, .ep = 2, .micro_batch = 2}), expected,
                   tolerance::kLayoutFp64, report);
  EXPECT_TRUE(report.passed()) << report.text();
}

// The tests above compare something: the gradient includes the auxiliary loss, and the main loss
// does not.
TEST(AuxiliaryLoss, ChangesGradientsAndNotTheMainLoss) {
  const models::Model plain = tiny_models().at(1).model();
  const Outcome without = one_rank(testing::toy_model({.coefficient = 0})(plain)),
                with = one_rank(testing::toy_model()(plain));
  EXPECT_EQ(with.losses.at(optim::Method::sgd)[0], without.losses.at(optim::Method::sgd)[0]);
  EXPECT_NE(with.gradients, without.gradients);
  ASSERT_EQ(with.metrics.size(), 2u);
  EXPECT_GT(with.metrics.at("square")[0], 0);
  EXPECT_EQ(with.metrics.at("square")[0], without.metrics.at("square")[0]);
}

// Each of 3 layers reports every counted token of the step once.
TEST(AuxiliaryLoss, CountsAreSumsOverLayersAndTokens) {
  const models::Model plain = tiny_models().at(1).model();
  const Outcome outcome = one_rank(testing::toy_model()(plain));
  for (size_t step = 0; step < kSteps; ++step) {
    const auto first = static_cast<int64_t>(8 * step);
    EXPECT_EQ(outcome.metrics.at("tokens")[step], 3 * random_batch(plain, first, 8, 8).counted());
  }
}

}  // namespace
}  // namespace megatron::selftest
