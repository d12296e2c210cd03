// Trained rows of a token embedding (trainable_token_indices), and of the output layer that it is
// or that has rows of its own, have the results of one rank in any layout.
#include "dist/selftest/adapted_runs.h"

namespace megatron::selftest {
namespace {

class TokenRows : public ::testing::TestWithParam<size_t> {};

TEST_P(TokenRows, AreThoseOfOneRank) {
  using Granularity = models::RecomputeOptions::Granularity;
  models::LoraConfig config{
      .rank = 3, .alpha = 5, .init = models::LoraInit::random, .all_linear = true};
  // On several ranks of four, and not in order.
  config.trainable_token_indices = {{"", {7, 8, 3, 30, 29, 60, 15, 16}}};
  const TinyModel tiny = tiny_models()[GetParam()];
  if (tiny.flags.untie) config.trainable_token_indices.push_back({"lm_head", {40, 3}});
  const models::Model model = adapted_model(tiny.flags, config);
  expect_results_in({{.tp = 2, .sequence = true, .micro_batch = 2},
                     {.tp = 2, .cp = 2, .micro_batch = 4},
                     {.pipeline = {parallel::ScheduleKind::zero_bubble_h1, 2}, .micro_batch = 2},
                     {.tp = 2,
                      .dp = 2,
                      .sharding = parallel::Sharding::parameters,
                      .recompute = {.granularity = Granularity::full},
                      .overlap = true,
                      .micro_batch = 2}},
                    model, run_adapted(model, {.micro_batch = 4}));
}

INSTANTIATE_TEST_SUITE_P(Models, TokenRows, ::testing::Values(1, 2),
                         [](const auto& info) { return info.param == 1 ? "Untied" : "Tied"; });

}  // namespace
}  // namespace megatron::selftest
