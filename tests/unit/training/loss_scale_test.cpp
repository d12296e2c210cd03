// The loss scale against the rule that its header states.
#include "optim/loss_scale.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "settings/precision_settings.h"

namespace megatron::training {
namespace {

void steps(optim::LossScale& scale, int count, bool overflow = false) {
  for (int i = 0; i < count; ++i) scale.after_step(overflow);
}

TEST(LossScale, BeginsAt2To32) {
  EXPECT_EQ(optim::LossScale({}).value(), 0x1p32);
  EXPECT_TRUE(optim::LossScale({}).dynamic());
}

TEST(LossScale, HalvesFromTheLastOverflowOfTheHysteresisOn) {
  optim::LossScale scale({.initial = 1024, .hysteresis = 3});
  steps(scale, 2, true);
  EXPECT_EQ(scale.value(), 1024);
  scale.after_step(true);
  EXPECT_EQ(scale.value(), 512);
  scale.after_step(true);
  EXPECT_EQ(scale.value(), 256);
}

TEST(LossScale, GoodStepsDoNotFillTheHysteresis) {
  optim::LossScale scale({.initial = 1024, .window = 100, .hysteresis = 2});
  scale.after_step(true);
  steps(scale, 50);
  scale.after_step(true);
  EXPECT_EQ(scale.value(), 512);
  steps(scale, 50);
  scale.after_step(true);
  EXPECT_EQ(scale.value(), 256);
}

TEST(LossScale, DoublesAfterAWindowAndFillsTheHysteresis) {
  optim::LossScale scale({.initial = 1024, .window = 5, .hysteresis = 2});
  steps(scale, 2, true);
  EXPECT_EQ(scale.value(), 512);
  steps(scale, 4);
  EXPECT_EQ(scale.value(), 512);
  scale.after_step(false);
  EXPECT_EQ(scale.value(), 1024);
  scale.after_step(true);
  EXPECT_EQ(scale.value(), 1024);  // the first of two again
  scale.after_step(true);
  EXPECT_EQ(scale.value(), 512);
}

TEST(LossScale, AnOverflowBeginsANewWindow) {
  optim::LossScale scale({.initial = 1024, .window = 5, .hysteresis = 9});
  steps(scale, 4);
  scale.after_step(true);
  steps(scale, 4);
  EXPECT_EQ(scale.value(), 1024);
  scale.after_step(false);
  EXPECT_EQ(scale.value(), 2048);
}

TEST(LossScale, StopsAtTheLeast) {
  optim::LossScale scale({.initial = 16, .least = 3, .hysteresis = 1});
  steps(scale, 10, true);
  EXPECT_EQ(scale.value(), 3);
  EXPECT_TRUE(scale.least());
}

TEST(LossScale, AConstantOneStays) {
  optim::LossScale scale({.constant = 128, .window = 2, .hysteresis = 1});
  steps(scale, 3, true);
  steps(scale, 5);
  EXPECT_EQ(scale.value(), 128);
  EXPECT_FALSE(scale.dynamic());
  EXPECT_TRUE(optim::LossScale({.constant = 0}).dynamic());  // as Megatron-LM takes --loss-scale 0
}

TEST(LossScale, GoesOnFromItsState) {
  optim::LossScale one({.initial = 1024, .window = 4, .hysteresis = 2});
  steps(one, 2, true);
  steps(one, 3);
  optim::LossScale other({.initial = 1024, .window = 4, .hysteresis = 2});
  other.resume(one.state());
  for (const bool overflow : {false, true, true, false, true}) {
    one.after_step(overflow);
    other.after_step(overflow);
    EXPECT_EQ(one.value(), other.value());
  }
}

std::string refusal(const settings::PrecisionSettings& s) {
  try {
    s.check();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(PrecisionSettings, RefuseWhatCannotBe) {
  const auto has = [](const std::string& text, std::string_view part) {
    EXPECT_NE(text.find(part), text.npos) << "'" << text << "' has no '" << part << "'";
  };
  EXPECT_EQ(refusal({}), "");
  EXPECT_EQ(refusal({.fp16 = true}), "");
  has(refusal({.fp16 = true, .loss_scaling = {.initial = 0}}), "--initial-loss-scale is 0");
  has(refusal({.fp16 = true, .loss_scaling = {.least = -1}}), "--min-loss-scale is -1");
  has(refusal({.fp16 = true, .loss_scaling = {.window = 0}}), "--loss-scale-window is 0");
  has(refusal({.fp16 = true, .loss_scaling = {.hysteresis = 0}}), "--hysteresis is 0");
  has(refusal({.fp16 = true, .loss_scaling = {.initial = 2, .least = 4}}), "--min-loss-scale 4");
}

TEST(PrecisionSettings, OnlyFp16ScalesTheLoss) {
  EXPECT_FALSE(settings::PrecisionSettings{.bf16 = true}.loss_scale());
  const auto scale = settings::PrecisionSettings{.fp16 = true}.loss_scale();
  ASSERT_TRUE(scale);
  EXPECT_EQ(scale->initial, 4294967296);
  EXPECT_EQ(scale->least, 1);
  EXPECT_EQ(scale->window, 1000);
  EXPECT_EQ(scale->hysteresis, 2);
}

}  // namespace
}  // namespace megatron::training
