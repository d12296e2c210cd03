// Schedules against Megatron-LM's (tests/golden/vectors/lr/README.md).
#include "optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/json.h"

namespace megatron::optim {
namespace {

Json cases() { return Json::read(std::string(MEGATRON_GOLDEN) + "/lr/lr_wd.json"); }

std::optional<DecayStyle> decay_style(const std::string& name) {
  if (name == "constant") return DecayStyle::constant;
  if (name == "linear") return DecayStyle::linear;
  if (name == "cosine") return DecayStyle::cosine;
  if (name == "inverse-square-root") return DecayStyle::inverse_square_root;
  return {};
}

std::optional<DecayIncrease> increase_style(const std::string& name) {
  if (name == "constant") return DecayIncrease::constant;
  if (name == "linear") return DecayIncrease::linear;
  if (name == "cosine") return DecayIncrease::cosine;
  return {};
}

LearningRate learning_rate(const Json& c, DecayStyle style) {
  return {.max = c["max_lr"].as_number(),
          .min = c["min_lr"].as_number(),
          .warmup_init = c["init_lr"].as_number(),
          .warmup = c["lr_warmup_steps"].as_number(),
          .decay = c["lr_decay_steps"].as_number(),
          .style = style};
}

WeightDecay weight_decay(const Json& c, DecayIncrease style) {
  return {.start = c["start_wd"].as_number(),
          .end = c["end_wd"].as_number(),
          .steps = c["wd_incr_steps"].as_integer(),
          .style = style};
}

void expect_near(double value, double expected, const std::string& what) {
  EXPECT_LE(std::abs(value - expected), 1e-12 * std::abs(expected))
      << what << ": " << value << " " << expected;
}

TEST(Schedule, EqualsMegatron) {
  const Json all = cases();
  int compared = 0;
  for (const Json& c : all.as_array()) {
    const auto style = decay_style(c["lr_decay_style"].as_string());
    const auto increase = increase_style(c["wd_incr_style"].as_string());
    if (c.contains("error") || !style || !increase) continue;
    const std::string name = c["name"].as_string();
    const LearningRate rate = learning_rate(c, *style);
    const WeightDecay decay = weight_decay(c, *increase);
    ASSERT_NO_THROW(rate.check()) << name;
    ASSERT_NO_THROW(decay.check()) << name;
    for (const Json& point : c["values"].as_array()) {
      const int64_t step = point.as_array()[0].as_integer();
      const auto& values = point.as_array()[1].as_array();
      const std::string where = name + " at " + std::to_string(step);
      expect_near(rate.at(step), values[0].as_number(), where);
      expect_near(decay.at(step), values[1].as_number(), where);
      ++compared;
    }
  }
  EXPECT_GT(compared, 1500);
}

TEST(Schedule, RefusesWhatMegatronRefuses) {
  const Json all = cases();
  int refused = 0;
  for (const Json& c : all.as_array()) {
    if (!c.contains("error")) continue;
    const auto style = decay_style(c["lr_decay_style"].as_string());
    const auto increase = increase_style(c["wd_incr_style"].as_string());
    if (!style || !increase) continue;  // no such choice of the flag
    EXPECT_THROW(
        {
          learning_rate(c, *style).check();
          weight_decay(c, *increase).check();
        },
        Error)
        << c["name"].as_string();
    ++refused;
  }
  EXPECT_EQ(refused, 7);
}

TEST(Schedule, RefusesNumbersThatAreNone) {
  LearningRate rate{.max = 1e-3, .min = 0, .decay = 10};
  EXPECT_NO_THROW(rate.check());
  rate.max = NAN;
  EXPECT_THROW(rate.check(), Error);
  rate.max = INFINITY;
  EXPECT_THROW(rate.check(), Error);
  WeightDecay decay;
  decay.start = decay.end = INFINITY;
  EXPECT_THROW(decay.check(), Error);
}

}  // namespace
}  // namespace megatron::optim
