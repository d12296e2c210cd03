// Adapters with dropout have the results of one rank in any layout, also with magnitudes (DoRA),
// and where ranks divide the columns of a product's input within a group of random numbers.
#include "dist/selftest/adapted_runs.h"

namespace megatron::selftest {
namespace {

class AdapterDropout : public ::testing::TestWithParam<bool> {
 protected:
  static models::Model model(double dropout) {
    models::ModelFlags flags = tiny_models()[1].flags;
    flags.ffn_hidden_size = 54;  // 14, 14, 14 and 12 on four ranks
    return adapted_model(flags, {.rank = 3,
                                 .alpha = 5,
                                 .dropout = dropout,
                                 .weight_decomposed = GetParam(),
                                 .init = models::LoraInit::random,
                                 .all_linear = true});
  }
};

TEST_P(AdapterDropout, IsThatOfOneRank) {
  using Granularity = models::RecomputeOptions::Granularity;
  const models::Model dropping = model(0.25);
  const Outcome expected = run_adapted(dropping, {.micro_batch = 4});
  EXPECT_NE(expected.losses.at(optim::Method::sgd),
            run_adapted(model(0), {.micro_batch = 4}).losses.at(optim::Method::sgd));
  expect_results_in({{.tp = 2, .sequence = true, .micro_batch = 2},
                     {.tp = 4, .micro_batch = 4},
                     {.tp = 2, .cp = 2, .sequence = true, .micro_batch = 4},
                     {.pipeline = {parallel::ScheduleKind::zero_bubble_h1, 2}, .micro_batch = 2},
                     {.dp = 2,
                      .sharding = parallel::Sharding::parameters,
                      .recompute = {.granularity = Granularity::full},
                      .overlap = true,
                      .micro_batch = 2}},
                    dropping, expected);
}

INSTANTIATE_TEST_SUITE_P(Kinds, AdapterDropout, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "DoRA" : "LoRA"; });

}  // namespace
}  // namespace megatron::selftest
