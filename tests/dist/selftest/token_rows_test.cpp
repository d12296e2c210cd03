// Trained rows of a token embedding (trainable_token_indices), and of the output layer that it is
// or that has rows of its own, have the results of one rank in any layout.
#include <gtest/gtest.h>

#include "base/tolerances.h"
#include "models/adapters/lora_config.h"
#include "selftest/experiment.h"
#include "selftest/tiny_models.h"

namespace megatron::selftest::token_rows_test {
namespace {

constexpr int64_t kTokens = 16, kPerStep = 8;

class TokenRows : public ::testing::TestWithParam<size_t> {
 protected:
  static models::Model model() {
    models::LoraConfig config{
        .rank = 3, .alpha = 5, .init = models::LoraInit::random, .all_linear = true};
    // On several ranks of four, and not in order.
    config.trainable_token_indices = {{"", {7, 8, 3, 30, 29, 60, 15, 16}}};
    const TinyModel tiny = tiny_models()[GetParam()];
    if (tiny.flags.untie) config.trainable_token_indices.push_back({"lm_head", {40, 3}});
    return models::model_from_flags(tiny.flags, 0)
        ->with({.adapter = std::make_shared<const models::LoraConfig>(std::move(config))});
  }
  auto run(const Layout& layout) const {
    return Experiment(model(), DeviceKind::reference, DType::f64, DType::f64,
                      settings::LossScope::token, kPerStep, kTokens, environment_)
        .run(layout, {optim::Method::sgd});
  }
  const Environment environment_;
};

TEST_P(TokenRows, AreThoseOfOneRank) {
  using Granularity = models::RecomputeOptions::Granularity;
  const auto expected = run({.micro_batch = 4});
  for (const Layout& layout : std::vector<Layout>{
           {.tp = 2, .sequence = true, .micro_batch = 2},
           {.tp = 2, .cp = 2, .micro_batch = 4},
           {.pipeline = {parallel::ScheduleKind::zero_bubble_h1, 2}, .micro_batch = 2},
           {.tp = 2,
            .dp = 2,
            .sharding = parallel::Sharding::parameters,
            .recompute = {.granularity = Granularity::full},
            .overlap = true,
            .micro_batch = 2}}) {
    Report report(layout.str());
    compare_outcomes(layout.str(), run(layout), expected, tolerance::kLayoutFp64, report);
    EXPECT_TRUE(report.passed()) << report.text();
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TokenRows, ::testing::Values(1, 2),
                         [](const auto& info) { return info.param == 1 ? "Untied" : "Tied"; });

}  // namespace
}  // namespace megatron::selftest::token_rows_test
