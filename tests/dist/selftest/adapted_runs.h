// Steps of models with adapters in fp64, whose results must be those of one rank in any layout.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "base/tolerances.h"
#include "models/adapters/lora_config.h"
#include "selftest/experiment.h"
#include "selftest/tiny_models.h"

namespace megatron::selftest {

inline models::Model adapted_model(const models::ModelFlags& flags, models::LoraConfig config) {
  return models::model_from_flags(flags, 0)->with(
      {.adapter = std::make_shared<const models::LoraConfig>(std::move(config))});
}

inline Outcome run_adapted(const models::Model& model, const Layout& layout) {
  constexpr int64_t kTokens = 16, kPerStep = 8;
  const Environment environment;
  return Experiment(model, DeviceKind::reference, DType::f64, DType::f64,
                    settings::LossScope::token, kPerStep, kTokens, environment)
      .run(layout, {optim::Method::sgd});
}

inline void expect_results_in(const std::vector<Layout>& layouts, const models::Model& model,
                              const Outcome& expected) {
  for (const Layout& layout : layouts) {
    Report report(layout.str());
    compare_outcomes(layout.str(), run_adapted(model, layout), expected, tolerance::kLayoutFp64,
                     report);
    EXPECT_TRUE(report.passed()) << report.text();
  }
}

}  // namespace megatron::selftest
