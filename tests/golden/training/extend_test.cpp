// A run with more iterations than planned logs what changes, and --extend-to-iters changes nothing
// in the earlier steps.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/files.h"
#include "data/indexed_dataset.h"
#include "golden/training/support.h"
#include "text.h"

namespace megatron::training {
namespace {

using testing::has;

const TrainHooks kQuick{.peak = 1e12};

class Extend : public ::testing::Test {
 protected:
  // 48 documents of 33 tokens: an epoch has 49 samples of 32, eight per step.
  Extend() : settings_(tiny_llama()) {
    data::IndexedDatasetBuilder builder(folder_ / "set", DType::u16);
    for (int32_t d = 0; d < 48; ++d) {
      std::array<int32_t, 33> tokens{};
      for (int32_t t = 0; t < 33; ++t) tokens[static_cast<size_t>(t)] = (d * 7 + t * (d % 5)) % 96;
      builder.add_item(std::span<const int32_t>(tokens));
      builder.end_document();
    }
    builder.finalize();
    settings_.data.mock_data = false;
    settings_.data.data_path = {folder_ / "set"};
    settings_.data.split = "1";
    settings_.optimizer.lr_decay_style = optim::DecayStyle::constant;
    settings_.checkpoint.save = settings_.checkpoint.load = folder_ / "run";
  }

  // Returns the losses and, in `output`, standard error.
  std::vector<double> run(const settings::TrainSettings& s, std::string* output = nullptr) {
    ::testing::internal::CaptureStderr();
    std::vector<double> all;
    std::string error;
    try {
      all = losses(train(s, kQuick));
    } catch (const Error& e) {
      error = e.what();
    }
    const std::string text = ::testing::internal::GetCapturedStderr() + error;
    if (output != nullptr) {
      *output = text;
    } else {
      EXPECT_EQ(error, "");
    }
    return all;
  }
  settings::TrainSettings of(int64_t iterations) {
    settings::TrainSettings s = settings_;
    s.batch.train_iters = iterations;
    return s;
  }

  TemporaryDirectory folder_;
  settings::TrainSettings settings_;
};

TEST_F(Extend, MoreStepsOfTheSameEpochsAreNoOtherOrder) {
  run(of(3));
  std::string output;
  const auto rest = run(of(5), &output);  // 40 of 49 samples
  EXPECT_EQ(rest.size(), 2u);
  EXPECT_FALSE(has(output, "warning")) << output;
  settings::TrainSettings whole = of(5);
  whole.checkpoint.save = whole.checkpoint.load = folder_ / "whole";
  const auto expected = run(whole);
  EXPECT_TRUE(same_bits(rest, {expected.begin() + 3, expected.end()}));
}

TEST_F(Extend, OtherEpochsAreWarnedOfWithTheFlagThatKeepsTheOrder) {
  run(of(3));
  std::string output;
  run(of(12), &output);  // 96 samples: two epochs, shuffled together
  EXPECT_TRUE(has(output, "the run requests 96 training samples")) << output;
  EXPECT_TRUE(has(output, "requested 24")) << output;
  EXPECT_TRUE(has(output, "--train-iters 3 and --extend-to-iters 12")) << output;
}

// The bits are the same whether the run was extended once or twice, killed, or this long from the
// start.
TEST_F(Extend, OneFlagKeepsOrderAndSchedule) {
  settings_.optimizer.lr_decay_style = optim::DecayStyle::cosine;
  settings_.optimizer.min_lr = 1e-3;
  const auto first = run(of(5));
  settings::TrainSettings longer = of(5);
  longer.batch.extend_to_iters = 9;
  std::string output;
  const auto second = run(longer, &output);
  EXPECT_FALSE(has(output, "warning")) << output;
  EXPECT_FALSE(has(output, "changed:")) << output;
  longer.batch.extend_to_iters = 14;
  const auto third = run(longer, &output);
  EXPECT_FALSE(has(output, "warning")) << output;
  std::vector<double> parts = first;
  parts.insert(parts.end(), second.begin(), second.end());
  parts.insert(parts.end(), third.begin(), third.end());
  settings::TrainSettings whole = longer;
  whole.checkpoint.save = whole.checkpoint.load = folder_ / "whole";
  const TrainResult once = train(whole, kQuick);
  EXPECT_TRUE(same_bits(losses(once), parts));
  EXPECT_EQ(once.iterations.back().iteration, 14);
  for (size_t i = 5; i < 14; ++i) EXPECT_EQ(once.iterations[i].learning_rate, 1e-3) << i;
  EXPECT_GT(once.iterations[4].learning_rate, 1e-3);
}

TEST_F(Extend, TheScheduleReachesTheNewEndWhereThatIsAskedFor) {
  settings_.optimizer.lr_decay_style = optim::DecayStyle::linear;
  run(of(5));
  settings::TrainSettings longer = of(5);
  longer.batch.extend_to_iters = 9;
  std::string output;
  run(longer, &output);
  EXPECT_TRUE(has(output, "the learning rate has decayed to 0 (--min-lr) by step 5")) << output;
  EXPECT_TRUE(has(output, "--override-opt-param-scheduler")) << output;
  longer.checkpoint.override_scheduler = true;
  EXPECT_EQ(run(longer, &output).size(), 4u);
  EXPECT_TRUE(has(output, "changed: lr-decay-samples from 40 to 72")) << output;
  EXPECT_FALSE(has(output, "warning")) << output;
}

TEST_F(Extend, AScheduleThatFollowsTheStepsNamesTheFlag) {
  settings_.optimizer.lr_decay_style = optim::DecayStyle::cosine;
  run(of(3));
  std::string output;
  run(of(5), &output);
  EXPECT_TRUE(has(output, "lr-decay-samples 24 in the checkpoint and 40 now")) << output;
  EXPECT_TRUE(has(output, "give --train-iters 3 and --extend-to-iters 5")) << output;
}

TEST_F(Extend, NumbersThatMakeNoSense) {
  settings::TrainSettings s = of(5);
  s.batch.extend_to_iters = 4;
  std::string output;
  run(s, &output);
  EXPECT_TRUE(has(output, "--extend-to-iters is 4")) << output;
  s.batch.extend_to_iters = 5;  // the run is already this long
  EXPECT_EQ(run(s).size(), 5u);
  run(of(5), &output);
  EXPECT_TRUE(has(output, "--extend-to-iters N continues training to step N")) << output;
}

TEST_F(Extend, BlendsSamplesAndRandomOrderGoOn) {
  settings_.batch.train_samples = 40;
  for (const bool cyclic : {false, true}) {
    settings::TrainSettings s = settings_;
    s.batch.train_iters.reset();
    s.data.data_path = {"0.6", folder_ / "set", "0.4", folder_ / "set"};
    if (cyclic) s.run.dataloader_type = "cyclic";
    s.checkpoint.save = s.checkpoint.load = folder_ / (cyclic ? "cyclic" : "blend");
    const auto first = run(s);
    s.batch.extend_to_iters = 12;
    std::string output;
    const auto rest = run(s, &output);
    EXPECT_EQ(rest.size(), 7u) << output;
    EXPECT_FALSE(has(output, "warning")) << output;
    s.checkpoint.save = s.checkpoint.load = folder_ / (cyclic ? "cyclic2" : "blend2");
    auto whole = run(s);
    EXPECT_TRUE(same_bits(std::vector<double>(whole.begin() + 5, whole.end()), rest));
  }
}

TEST_F(Extend, WhatChangesTheNumbersIsToldInOneList) {
  run(of(3));
  settings::TrainSettings s = of(5);
  s.optimizer.config.clip_grad = 0.5;
  s.optimizer.config.adam_beta1 = 0.8;
  s.optimizer.config.adam_eps = 1e-6;
  s.optimizer.weight_decay = 0.2;
  s.checkpoint.override_scheduler = true;
  s.shape.attention_dropout = 0.1;
  s.precision.on_non_finite = settings::OnNonFinite::skip;
  std::string output;
  run(s, &output);
  for (const char* part :
       {"settings that differ from those of ", "changed: clip-grad from 1 to 0.5",
        "changed: adam-beta1 from 0.9 to 0.8", "changed: adam-eps from 1e-08 to 1e-06",
        "changed: start-weight-decay from 0.01 to 0.2", "changed: attention-dropout from 0 to 0.1",
        "changed: on-non-finite from stop to skip"})
    EXPECT_TRUE(has(output, part)) << part << "\n" << output;
  EXPECT_FALSE(has(output, "changed: hidden-dropout")) << output;
  EXPECT_TRUE(has(read_file(folder_ / "run/log.jsonl"), "changed: clip-grad from 1 to 0.5"));
  run(of(5), &output);
  EXPECT_TRUE(has(output, "the schedule differs from that of")) << output;
}

TEST_F(Extend, TheLossScalesRuleIsAmongThem) {
  settings_.precision.fp16 = true;
  run(of(3));
  settings::TrainSettings s = of(4);
  s.precision.loss_scaling.window = 2;
  std::string output;
  run(s, &output);
  EXPECT_TRUE(has(output, "changed: loss-scale-window from 1000 to 2")) << output;
}

}  // namespace
}  // namespace megatron::training
