// Adapters with dropout have the results of one rank in any layout, also with magnitudes (DoRA),
// and where ranks divide the columns of a product's input within a group of random numbers.
#include <gtest/gtest.h>

#include "base/tolerances.h"
#include "models/adapters/lora_config.h"
#include "selftest/experiment.h"
#include "selftest/tiny_models.h"

namespace megatron::selftest {
namespace {

constexpr int64_t kTokens = 16, kPerStep = 8;

class AdapterDropout : public ::testing::TestWithParam<bool> {
 protected:
  static models::Model model(double dropout) {
    models::ModelFlags flags = tiny_models()[1].flags;
    flags.ffn_hidden_size = 54;  // 14, 14, 14 and 12 on four ranks
    models::LoraConfig config{.rank = 3,
                              .alpha = 5,
                              .dropout = dropout,
                              .weight_decomposed = GetParam(),
                              .init = models::LoraInit::random,
                              .all_linear = true};
    return models::model_from_flags(flags, 0)->with(
        {.adapter = std::make_shared<const models::LoraConfig>(std::move(config))});
  }
  Outcome run(const Layout& layout, double dropout = 0.25) const {
    return Experiment(model(dropout), DeviceKind::reference, DType::f64, DType::f64,
                      settings::LossScope::token, kPerStep, kTokens, environment_)
        .run(layout, {optim::Method::sgd});
  }
  const Environment environment_;
};

TEST_P(AdapterDropout, IsThatOfOneRank) {
  using Granularity = models::RecomputeOptions::Granularity;
  const Outcome expected = run({.micro_batch = 4});
  EXPECT_NE(expected.losses.at(optim::Method::sgd),
            run({.micro_batch = 4}, 0).losses.at(optim::Method::sgd));
  for (const Layout& layout : std::vector<Layout>{
           {.tp = 2, .sequence = true, .micro_batch = 2},
           {.tp = 4, .micro_batch = 4},
           {.tp = 2, .cp = 2, .sequence = true, .micro_batch = 4},
           {.pipeline = {parallel::ScheduleKind::zero_bubble_h1, 2}, .micro_batch = 2},
           {.dp = 2,
            .sharding = parallel::Sharding::parameters,
            .recompute = {.granularity = Granularity::full},
            .overlap = true,
            .micro_batch = 2}}) {
    Report report(layout.str());
    compare_outcomes(layout.str(), run(layout), expected, tolerance::kLayoutFp64, report);
    EXPECT_TRUE(report.passed()) << report.text();
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, AdapterDropout, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "DoRA" : "LoRA"; });

}  // namespace
}  // namespace megatron::selftest
