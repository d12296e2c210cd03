// Latent attention with experts in layouts that divide its heads, latents and tokens in every way:
// DeepSeek-V3's golden configuration with random weights, losses and gradients in fp64.
#include <gtest/gtest.h>

#include <cstring>

#include "base/json.h"
#include "base/tolerances.h"
#include "selftest/expected.h"
#include "selftest/experiment.h"
#include "selftest/passing_group.h"
#include "support.h"

namespace megatron::selftest {
namespace {

using megatron::testing::vectors;
using models::RecomputeOptions;
using parallel::ContextExchange;
using parallel::Sharding;

models::Model deepseek(int64_t layers) {
  Json config = Json::read(vectors("hf/deepseek_v3/config.json"));
  config.set("num_hidden_layers", layers);
  config.set("initializer_range", 0.2);
  return models::model_from_config_json(config);
}

RecomputeOptions selective(std::vector<std::string> modules) {
  return {.granularity = RecomputeOptions::Granularity::selective, .modules = std::move(modules)};
}

TEST(LatentLayouts, GiveWhatOneRankGives) {
  const Environment environment;
  const std::vector<optim::Method> methods = {optim::Method::sgd};
  const RecomputeOptions full = {.granularity = RecomputeOptions::Granularity::full};
  for (const bool packed : {false, true}) {
    const Experiment experiment(deepseek(4), DeviceKind::reference, DType::f64, DType::f64,
                                settings::LossScope::token, 4, 16, environment, nullptr, packed);
    const Outcome one = experiment.run({.micro_batch = 2}, methods);
    Layout tensor{.tp = 2, .dp = 2, .sharding = Sharding::parameters, .micro_batch = 1},
        stages{.tp = 4, .ep = 2, .etp = 1, .sequence = true, .pipeline = {.stages = 2}},
        ring{.cp = 4, .ep = 2, .recompute = full},
        gathered{.tp = 2, .cp = 2, .sequence = true, .recompute = selective({"mla_up_proj"})},
        heads{.cp = 2, .dp = 2, .sharding = Sharding::gradients},
        zero_bubble{.tp = 2,
                    .sequence = true,
                    .pipeline = {.kind = parallel::ScheduleKind::zero_bubble_h1, .stages = 2}};
    stages.recompute = selective({"mla_up_proj", "core_attn"});
    gathered.exchange = ContextExchange::all_gather;
    heads.exchange = ContextExchange::a2a;
    for (Layout* layout : {&stages, &ring, &gathered}) layout->micro_batch = 2;
    for (Layout* layout : {&heads, &zero_bubble}) layout->micro_batch = 1;
    for (const Layout& layout : {tensor, stages, ring, gathered, heads, zero_bubble}) {
      Report report(layout.str());
      compare_outcomes(layout.str(), experiment.run(layout, methods), one, tolerance::kLayoutFp64,
                       report);
      EXPECT_TRUE(report.passed()) << report.text();
      EXPECT_GT(report.compared(), 50) << report.text();
    }
  }
}

// The gradient of the rotary key, of which each rank has that of its heads, is not added up.
class UnsummedKey final : public PassingGroup<UnsummedKey> {
 public:
  using PassingGroup::PassingGroup;
  comm::Work make(comm::GroupCall call, Stream& stream) override {
    if (call.operation == comm::Operation::all_reduce &&
        call.name.starts_with("rotary_key, gradient"))
      return {};
    return group_.make(call, stream);
  }
};

// A rank has its own tokens' rotary keys in place of the other rank's.
class UngatheredKey final : public PassingGroup<UngatheredKey> {
 public:
  using PassingGroup::PassingGroup;
  comm::Work make(comm::GroupCall call, Stream& stream) override {
    comm::Work work = group_.make(call, stream);
    if (call.operation != comm::Operation::all_gather || call.name != "rotary_key") return work;
    work.wait(stream);
    const int64_t rows = call.in.size(0);
    for (int rank = 0; rank < group_.size(); ++rank)
      std::memcpy(call.out.slice(0, rank * rows, rows).raw(), call.in.raw(),
                  static_cast<size_t>(call.in.bytes()));
    return {};
  }
};

template <class Changed>
std::string text_with(const Layout& layout) {
  Environment environment;
  const auto run = [&](const Layout& of) {
    return Experiment(deepseek(2), DeviceKind::reference, DType::f64, DType::f64,
                      settings::LossScope::token, 4, 16, environment)
        .run(of, {optim::Method::sgd});
  };
  const Outcome one = run({.micro_batch = 2});
  environment.wrap = [](comm::Group& group) { return std::make_unique<Changed>(group); };
  Report report("changed");
  compare_outcomes("changed", run(layout), one, tolerance::kLayoutFp64, report);
  EXPECT_FALSE(report.passed());
  return report.text();
}

TEST(LatentLayouts, ADefectOfTheRotaryKeyIsFound) {
  const std::string unsummed = text_with<UnsummedKey>({.tp = 2, .micro_batch = 2}),
                    ungathered =
                        text_with<UngatheredKey>({.tp = 2, .sequence = true, .micro_batch = 2});
  for (const std::string& text : {unsummed, ungathered})
    EXPECT_NE(text.find("kv_a_proj_with_mqa"), std::string::npos) << text;
}

}  // namespace
}  // namespace megatron::selftest
