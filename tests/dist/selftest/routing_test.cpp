// Load balancing and capacities over more tokens than those of one rank: in fp64, steps of other
// layouts equal those of one rank.
#include "base/tolerances.h"
#include "golden/selftest/support.h"
#include "selftest/experiment.h"

namespace megatron::selftest {
namespace {

constexpr int64_t kStepSequences = 4, kLength = 8;

struct Routed {
  const char* name;
  std::function<void(models::MoeFlags&)> change;
  bool of_step = false;  // true if results depend on earlier tokens of the step
};

void PrintTo(const Routed& routed, std::ostream* out) { *out << routed.name; }

models::Model model_of(const Routed& routed) {
  TinyModel tiny = tiny_models()[1];
  models::ModelFlags& flags = tiny.flags;
  flags.num_layers = 2;
  flags.moe.num_experts = 4;
  flags.moe.ffn_hidden_size = 12;
  routed.change(flags.moe);
  return tiny.model();
}

parallel::PipelineShape two_stages() { return {.stages = 2}; }
models::RecomputeOptions layers() {
  return {.granularity = models::RecomputeOptions::Granularity::full};
}
models::RecomputeOptions module(const char* name) {
  return {.granularity = models::RecomputeOptions::Granularity::selective, .modules = {name}};
}

class Routing : public ::testing::TestWithParam<Routed> {
 protected:
  selftest::Outcome run(const Layout& layout) const {
    return experiment_.run(layout, {optim::Method::sgd});
  }
  // `others` are layouts whose ranks have the same micro-batches as those of `one`.
  void expect_equal(const Layout& one, const std::vector<Layout>& others) const {
    const selftest::Outcome expected = run(one);
    EXPECT_EQ(expected.complaints, std::vector<std::string>());
    for (const Layout& layout : others) {
      Report report;
      compare_outcomes(layout.str(), run(layout), expected, tolerance::kLayoutFp64, report);
      EXPECT_TRUE(report.passed()) << report.text();
      EXPECT_GT(report.compared(), 10);
    }
  }

  const Environment environment_;
  const Experiment experiment_{
      model_of(GetParam()),       DeviceKind::reference, DType::f64, DType::f64,
      settings::LossScope::token, kStepSequences,        kLength,    environment_};
};

TEST_P(Routing, DoesNotDependOnTheLayout) {
  expect_equal({.micro_batch = 2},
               {{.tp = 2, .sequence = true, .micro_batch = 2},
                {.tp = 2, .micro_batch = 2},
                {.cp = 2, .micro_batch = 2},
                {.cp = 2, .ep = 2, .recompute = layers(), .micro_batch = 2},
                {.tp = 2, .cp = 2, .etp = 1, .sequence = true, .micro_batch = 2},
                {.tp = 4, .etp = 1, .sequence = true, .micro_batch = 2},
                {.pipeline = two_stages(), .micro_batch = 2},
                {.pipeline = two_stages(), .recompute = layers(), .micro_batch = 2},
                {.recompute = layers(), .micro_batch = 2},
                {.recompute = module("moe"), .micro_batch = 2}});
}

TEST_P(Routing, DoesNotDependOnDataParallelRanks) {
  if (GetParam().of_step) {
    expect_equal({.micro_batch = 4}, {{.dp = 2, .micro_batch = 2},
                                      {.dp = 2, .recompute = layers(), .micro_batch = 2},
                                      {.dp = 2, .ep = 2, .micro_batch = 2}});
    return;
  }
  expect_equal({.micro_batch = 2},
               {{.dp = 2, .micro_batch = 2},
                {.dp = 2, .ep = 2, .recompute = layers(), .micro_batch = 2},
                {.tp = 2, .dp = 2, .ep = 2, .etp = 1, .sequence = true, .micro_batch = 2}});
}

// The first step equals a pass made before it, because that pass leaves no state behind.
TEST_P(Routing, BeginsEveryStepAnew) {
  const selftest::Outcome outcome = run({.micro_batch = 1});
  double squares = 0;
  for (const auto& [name, values] : outcome.gradients) squares += norm(values) * norm(values);
  EXPECT_NEAR(outcome.gradient_norms.at(0), std::sqrt(squares), 1e-10 * std::sqrt(squares));
}

// Each method changes the steps.
TEST_P(Routing, Acts) {
  const Routed plain{"plain", [](models::MoeFlags&) {}};
  const Experiment without(model_of(plain), DeviceKind::reference, DType::f64, DType::f64,
                           settings::LossScope::token, kStepSequences, kLength, environment_);
  const selftest::Outcome with = run({.micro_batch = 2}),
                          other = without.run({.micro_batch = 2}, {optim::Method::sgd});
  EXPECT_NE(with.losses.at(optim::Method::sgd).back(), other.losses.at(optim::Method::sgd).back());
}

void balance_step(models::MoeFlags& m) {
  m.load_balancing_type = {"global_aux_loss", "seq_aux_loss"};
  m.aux_loss_coeff = {"0.3", "0.1"};
}
void sinkhorn(models::MoeFlags& m) { m.load_balancing_type = {"sinkhorn"}; }
void sinkhorn_of_one(models::MoeFlags& m) {
  m.load_balancing_type = {"sinkhorn"};
  m.topk = 1;
}
void quantiles(models::MoeFlags& m) {
  m.load_balancing_type = {"quantile_balancing"};
  m.quantile_ema = 0.25;
}
void quantiles_of_sigmoids(models::MoeFlags& m) {
  m.load_balancing_type = {"quantile_balancing"};
  m.score = kernels::RouterScore::sigmoid;
}

void capacity(models::MoeFlags& m) { m.capacity_factor = 0.75; }
void capacity_by_position(models::MoeFlags& m) {
  m.capacity_factor = 0.75;
  m.drop_policy = kernels::KeptRows::first;
}
void padded_capacity(models::MoeFlags& m) {
  m.capacity_factor = 0.75;
  m.pad_to_capacity = true;
}

// Gradient norms of a few steps with `sequences` sequences each.
std::vector<double> norms_of(const Routed& routed, int64_t sequences, int64_t micro_batch) {
  const Environment environment;
  return Experiment(model_of(routed), DeviceKind::reference, DType::f64, DType::f64,
                    settings::LossScope::token, sequences, kLength, environment)
      .run({.micro_batch = micro_batch}, {optim::Method::sgd})
      .gradient_norms;
}

TEST(GlobalLoss, CountsWhatCameBefore) {
  const Routed routed{"step", balance_step};
  EXPECT_NE(norms_of(routed, kStepSequences, 1).at(0),
            norms_of(routed, kStepSequences, kStepSequences).at(0));
}

TEST(GlobalLoss, OfAStepOfOneSequenceIsTheSequences) {
  const auto of_one = [](const char* type) {
    const auto change = [type](models::MoeFlags& m) {
      m.load_balancing_type = {type};
      m.aux_loss_coeff = {"0.3"};
    };
    return norms_of({type, change}, 1, 1);
  };
  const std::vector<double> global = of_one("global_aux_loss"), sequence = of_one("seq_aux_loss");
  for (size_t i = 0; i < global.size(); ++i)
    EXPECT_NEAR(global[i], sequence[i], 1e-10 * sequence[i]) << i;
}

INSTANTIATE_TEST_SUITE_P(
    Experts, Routing,
    ::testing::Values(Routed{"global_loss", balance_step, true}, Routed{"sinkhorn", sinkhorn},
                      Routed{"sinkhorn_of_one", sinkhorn_of_one}, Routed{"quantiles", quantiles},
                      Routed{"quantiles_of_sigmoids", quantiles_of_sigmoids},
                      Routed{"capacity", capacity},
                      Routed{"capacity_by_position", capacity_by_position},
                      Routed{"padded_capacity", padded_capacity},
                      Routed{"jitter", [](models::MoeFlags& m) { m.input_jitter = 0.1; }},
                      Routed{"random_logits",
                             [](models::MoeFlags& m) { m.force_load_balancing = true; }},
                      Routed{"biased", [](models::MoeFlags& m) { m.force_biased = 2; }},
                      Routed{"always_biased", [](models::MoeFlags& m) { m.force_biased = -2; }}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace megatron::selftest
