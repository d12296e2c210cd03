// Context-parallel ranks give the losses, gradients and updates of one rank, for each kind of
// exchange.
#include <gtest/gtest.h>

#include "base/tolerances.h"
#include "selftest/experiment.h"
#include "selftest/tiny_models.h"
#include "two_sided.h"

namespace megatron::selftest {
namespace {

using models::ModelFlags;
using parallel::ContextExchange;

constexpr int64_t kTokens = 16, kPerStep = 4;

// A model with eight heads in two groups and one feature of attention changed.
struct Feature {
  std::string name;
  void (*change)(ModelFlags&);
  bool two_sided = false;
};

void PrintTo(const Feature& f, std::ostream* out) { *out << f.name; }

class ContextParallel : public ::testing::TestWithParam<Feature> {};

TEST_P(ContextParallel, GivesTheResultsOfOneRank) {
  ModelFlags flags = tiny_models()[1].flags;
  flags.num_attention_heads = 8;
  flags.num_query_groups = 2;
  GetParam().change(flags);
  const Environment environment;
  const models::Model model =
      GetParam().two_sided ? testing::two_sided(flags) : models::model_from_flags(flags, 0);
  const Experiment experiment(model, DeviceKind::reference, DType::f64, DType::f64,
                              settings::LossScope::token, kPerStep, kTokens, environment);
  const std::vector<optim::Method> methods = {optim::Method::sgd};
  const Outcome expected = experiment.run({.micro_batch = 2}, methods);
  const std::vector<Layout> layouts = {
      {.cp = 2, .exchange = ContextExchange::p2p, .micro_batch = 2},
      {.cp = 4, .exchange = ContextExchange::p2p, .micro_batch = 1},
      {.cp = 2, .exchange = ContextExchange::all_gather, .micro_batch = 2},
      {.cp = 4, .exchange = ContextExchange::all_gather, .micro_batch = 2},
      {.tp = 2, .cp = 2, .sequence = true, .exchange = ContextExchange::p2p, .micro_batch = 2},
      {.cp = 2, .exchange = ContextExchange::a2a, .micro_batch = 2},
      {.cp = 4, .exchange = ContextExchange::a2a, .micro_batch = 2},
      {.cp = 4, .exchange = ContextExchange::a2a_p2p, .context_levels = {2, 2}, .micro_batch = 2},
      {.cp = 8, .exchange = ContextExchange::a2a_p2p, .context_levels = {4, 2}, .micro_batch = 1}};
  for (const Layout& layout : layouts) {
    Report report(GetParam().name);
    compare_outcomes(layout.str(), experiment.run(layout, methods), expected,
                     tolerance::kLayoutFp64, report);
    EXPECT_TRUE(report.passed()) << report.text();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Features, ContextParallel,
    ::testing::Values(
        Feature{"grouped heads", [](ModelFlags&) {}},
        Feature{"dropout", [](ModelFlags& f) { f.hidden_dropout = f.attention_dropout = 0.25; }},
        Feature{"a window", [](ModelFlags& f) { f.window_size = "5,0"; }},
        Feature{"a window of one token", [](ModelFlags& f) { f.window_size = "0,0"; }},
        Feature{"a window of nearly all", [](ModelFlags& f) { f.window_size = "14,0"; }},
        Feature{"a short window with dropout and sinks",
                [](ModelFlags& f) {
                  f.window_size = "2,0";
                  f.hidden_dropout = f.attention_dropout = 0.25;
                  f.softmax_type = models::SoftmaxType::learnable;
                }},
        Feature{"sinks of zero",
                [](ModelFlags& f) { f.softmax_type = models::SoftmaxType::off_by_one; }},
        Feature{"norms of queries and keys", [](ModelFlags& f) { f.qk_layernorm = true; }},
        Feature{"learned sinks",
                [](ModelFlags& f) { f.softmax_type = models::SoftmaxType::learnable; }},
        Feature{"both sides", [](ModelFlags&) {}, true},
        Feature{"a two-sided window", [](ModelFlags& f) { f.window_size = "5,0"; }, true},
        Feature{"a short two-sided window with dropout and sinks",
                [](ModelFlags& f) {
                  f.window_size = "1,0";
                  f.hidden_dropout = f.attention_dropout = 0.25;
                  f.softmax_type = models::SoftmaxType::learnable;
                },
                true}),
    [](const auto& info) {
      std::string name = info.param.name;
      std::ranges::replace(name, ' ', '_');
      std::ranges::replace(name, '-', '_');
      return name;
    });

}  // namespace
}  // namespace megatron::selftest
