// An auxiliary loss of every layer, and a count, through the layout matrix: values in the report of
// the step and gradients are those of one rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "selftest/layout_matrix.h"
#include "toy_model.h"

namespace megatron::selftest {
namespace {

// What differs in how a report is divided: tokens, stages and their chunks, replicas, micro-batches;
// and in how often forward runs. slow/selftest has every row.
struct LayoutKind {
  const char* name;
  std::function<bool(const Layout&)> has;
  Precisions precisions = Precisions::fp64;
};

const std::vector<LayoutKind> kKinds = {
    {"chunks", [](const Layout& l) { return l.tp > 1 && !l.sequence && l.pipeline.chunks > 1; }},
    {"sequence", [](const Layout& l) { return l.sequence && l.pipeline.stages == 2; }},
    {"zero_3",
     [](const Layout& l) { return l.dp > 1 && l.sharding == parallel::Sharding::parameters; },
     Precisions::fp32},
};

TEST(AuxiliaryLoss, IsThatOfOneRankInEveryKindOfLayout) {
  const LayoutMatrix matrix(2);
  const Environment environment;
  MatrixRun fp64(environment, Precisions::fp64, DeviceKind::cpu, testing::toy_model()),
      fp32(environment, Precisions::fp32, DeviceKind::cpu, testing::toy_model());
  for (const LayoutKind& kind : kKinds) {
    const auto row = std::ranges::find_if(matrix.rows(), kind.has, &MatrixRow::layout);
    ASSERT_NE(row, matrix.rows().end()) << kind.name;
    const Report report = (kind.precisions == Precisions::fp32 ? fp32 : fp64).run(*row);
    EXPECT_TRUE(report.passed()) << report.text();
    EXPECT_NE(report.text().find("square"), std::string::npos) << report.text();
  }
}

Outcome one_rank(const models::Model& model) {
  const Environment environment;
  const Experiment experiment(model, DeviceKind::reference, DType::f64, DType::f64,
                              training::LossScope::token, 8, 8, environment);
  return experiment.run({.micro_batch = 2}, {optim::Method::sgd});
}

// What is compared above is there: the gradient has the auxiliary loss in it, the main loss not.
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
