// Compares schedules with Megatron-LM's (tests/golden/vectors/lr/README.md).
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
  if (name == "WSD") return DecayStyle::wsd;
  return {};
}

WsdStyle wsd_style(const std::string& name) {
  if (name == "linear") return WsdStyle::linear;
  if (name == "cosine") return WsdStyle::cosine;
  return name == "minus_sqrt" ? WsdStyle::minus_sqrt : WsdStyle::exponential;
}

std::optional<DecayIncrease> increase_style(const std::string& name) {
  if (name == "constant") return DecayIncrease::constant;
  if (name == "linear") return DecayIncrease::linear;
  if (name == "cosine") return DecayIncrease::cosine;
  return {};
}

// `group`: a parameter group's own highest and lowest rate, weight decay.
double number(const Json& c, const Json* group, std::string_view key) {
  const Json* own = group == nullptr ? nullptr : group->find(key);
  return own == nullptr ? c[key].as_number() : own->as_number();
}

LearningRate learning_rate(const Json& c, DecayStyle style) {
  const auto given = [&c](std::string_view key) {
    return c.contains(key) && !c[key].is_null() ? &c[key] : nullptr;
  };
  const Json *length = given("wsd_decay_steps"), *wsd = given("lr_wsd_decay_style");
  return {.max = c["max_lr"].as_number(),
          .min = c["min_lr"].as_number(),
          .warmup_init = c["init_lr"].as_number(),
          .warmup = c["lr_warmup_steps"].as_number(),
          .decay = c["lr_decay_steps"].as_number(),
          .style = style,
          .wsd = length == nullptr ? 0 : length->as_number(),
          .wsd_style = wsd_style(wsd == nullptr ? "" : wsd->as_string())};
}

WeightDecay weight_decay(const Json& c, DecayIncrease style, const Json* group = nullptr) {
  return {.start = number(c, group, "start_wd"),
          .end = number(c, group, "end_wd"),
          .steps = c["wd_incr_steps"].as_integer(),
          .style = style};
}

void expect_near(double value, double expected, const std::string& what) {
  EXPECT_LE(std::abs(value - expected), 1e-12 * std::abs(expected))
      << what << ": " << value << " " << expected;
}

// Learning rate and weight decay of each group at a case's points.
void compare(const Json& c, LearningRate rate, DecayIncrease increase, int& compared) {
  const Json none = Json::Array{Json::Object{}};
  const auto& groups = (c.contains("groups") ? c["groups"] : none).as_array();
  for (const Json& point : c["values"].as_array()) {
    const int64_t step = point.as_array()[0].as_integer();
    if (point.as_array()[1]
            .is_string()) {  // there the reference has no style for WSD's fall, and stops
      EXPECT_EQ(c["name"].as_string(), "error_wsd_missing_style");
      continue;
    }
    ASSERT_EQ(point.as_array().size(), groups.size() + 1);
    for (size_t g = 0; g < groups.size(); ++g) {
      const std::string where =
          c["name"].as_string() + " at " + std::to_string(step) + ", group " + std::to_string(g);
      const auto& values = point.as_array()[g + 1].as_array();
      rate.decoupled = {number(c, &groups[g], "max_lr"), number(c, &groups[g], "min_lr")};
      ASSERT_NO_THROW(rate.check()) << where;
      expect_near(*rate.decoupled_at(step), values[0].as_number(), where);
      if (g == 0) expect_near(rate.at(step), values[0].as_number(), where);
      const WeightDecay decay = weight_decay(c, increase, &groups[g]);
      ASSERT_NO_THROW(decay.check()) << where;
      const Json* factor = groups[g].find("wd_mult");
      expect_near((factor == nullptr ? 1 : factor->as_number()) * decay.at(step),
                  values[1].as_number(), where);
      ++compared;
    }
  }
}

TEST(Schedule, EqualsMegatron) {
  const Json all = cases();
  int compared = 0, styles = 0, equal = 0;
  for (const Json& c : all.as_array()) {
    const auto style = decay_style(c["lr_decay_style"].as_string());
    const auto increase = increase_style(c["wd_incr_style"].as_string());
    if (c.contains("error") || !style || !increase) continue;
    ++equal;
    styles += *style == DecayStyle::wsd;
    compare(c, learning_rate(c, *style), *increase, compared);
  }
  // 63 cases; 8 are refused below, and two have styles that no flag accepts
  // (tests/unit/settings/schedule_styles_test.cpp).
  EXPECT_EQ(all.as_array().size(), 63U);
  EXPECT_EQ(equal, 53);
  EXPECT_EQ(compared, 3633);
  EXPECT_EQ(styles, 19);
}

TEST(Schedule, RefusesWhatMegatronRefuses) {
  const Json all = cases();
  int refused = 0;
  for (const Json& c : all.as_array()) {
    if (!c.contains("error")) continue;
    const auto style = decay_style(c["lr_decay_style"].as_string());
    const auto increase = increase_style(c["wd_incr_style"].as_string());
    if (!style || !increase) continue;  // the flag has no such value
    EXPECT_THROW(
        {
          learning_rate(c, *style).check();
          weight_decay(c, *increase).check();
        },
        Error)
        << c["name"].as_string();
    ++refused;
  }
  EXPECT_EQ(refused, 8);
}

TEST(Schedule, WsdAndDecoupledRatesHaveLimits) {
  LearningRate rate{.max = 1e-3, .decay = 100, .style = DecayStyle::wsd, .wsd = 20};
  EXPECT_NO_THROW(rate.check());
  rate.wsd = 101;
  EXPECT_THROW(rate.check(), Error);
  rate.wsd = 20;
  rate.decoupled = {1e-2, 2e-2};
  EXPECT_THROW(rate.check(), Error);
  rate.decoupled = {-1e-2, 0};
  EXPECT_THROW(rate.check(), Error);
  rate.decoupled = {1e-2, 1e-3};
  EXPECT_NO_THROW(rate.check());
  EXPECT_DOUBLE_EQ(*rate.decoupled_at(50), 1e-2);
  EXPECT_DOUBLE_EQ(*rate.decoupled_at(101), 1e-3);
  rate.decoupled.reset();
  EXPECT_FALSE(rate.decoupled_at(50));
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
