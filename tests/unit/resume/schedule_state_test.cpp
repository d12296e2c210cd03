// Compares schedules of resumed runs with Megatron-LM's (tests/golden/vectors/lr/README.md), and
// checks those of flags.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "resume/trainer_state.h"

namespace megatron::resume {
namespace {

optim::LearningRate rate_of(const Json& j) {
  EXPECT_EQ(j["lr_decay_style"].as_string(), "cosine");
  return {.max = j["max_lr"].as_number(),
          .min = j["min_lr"].as_number(),
          .warmup = j["lr_warmup_steps"].as_number(),
          .decay = j["lr_decay_steps"].as_number(),
          .style = optim::DecayStyle::cosine};
}

optim::WeightDecay decay_of(const Json& j) {
  const bool linear = j["wd_incr_style"].as_string() == "linear";
  return {.start = j["start_wd"].as_number(),
          .end = j["end_wd"].as_number(),
          .steps = j["wd_incr_steps"].as_integer(),
          .style = linear ? optim::DecayIncrease::linear : optim::DecayIncrease::constant};
}

TEST(ScheduleState, EqualsMegatronsUnderBothFlags) {
  const Json cases = Json::read(std::string(MEGATRON_GOLDEN) + "/lr/load_state.json");
  EXPECT_EQ(cases.as_array().size(), 12u);
  for (const Json& c : cases.as_array()) {
    resume::TrainerState saved;
    saved.learning_rate = rate_of(c["saved"]);
    saved.weight_decay = decay_of(c["saved"]);
    saved.data = saved.layout = Json::Object{};
    saved = resume::TrainerState::from_json(saved.to_json(), "x");
    const settings::CheckpointSettings how{
        .override_scheduler = c["override"].as_bool(),
        .use_checkpoint_scheduler = c["use_checkpoint"].as_bool()};
    optim::LearningRate rate = rate_of(c["new"]);
    optim::WeightDecay decay = decay_of(c["new"]);
    if (c.contains("error")) {
      EXPECT_THROW(resume::settle_schedule(saved, "x", how, rate, decay), Error) << c.dump();
      continue;
    }
    resume::settle_schedule(saved, "x", how, rate, decay);
    const int64_t samples = c["num_steps"].as_integer();
    EXPECT_NEAR(rate.at(samples), c["lr"].as_number(), 1e-12 * c["lr"].as_number()) << c.dump();
    const optim::WeightDecay after = decay_of(c["state_after"]);
    EXPECT_EQ(decay.start, after.start) << c.dump();
    EXPECT_EQ(decay.style, after.style) << c.dump();
    // Right after loading, Megatron-LM's value is that of the arguments, whatever its later state.
    if (!how.use_checkpoint_scheduler) {
      EXPECT_NEAR(decay.at(samples), c["wd"].as_number(), 1e-12) << c.dump();
    }
  }
}

// The saved layout of ranks is only informational. Older files contain less of it or nothing.
TEST(ScheduleState, KeepsAnyLayout) {
  settings::TrainSettings settings;
  settings.runtime.ranks = 8;
  settings.parallel.tensor_parallel = settings.parallel.pipeline_parallel = 2;
  settings.parallel.sequence_parallel = true;
  settings.parallel.virtual_stages = 2;
  const Json layout = resume::layout_of(settings, 8);
  EXPECT_EQ(layout["schedule"].as_string(), "interleaved");
  EXPECT_EQ(layout["chunks"].as_integer(), 2);
  EXPECT_TRUE(layout["sequence_parallel"].as_bool());
  EXPECT_EQ(layout["instances"].as_integer(), 1);
  EXPECT_EQ(layout["data_parallel"].as_integer(), 2);
  resume::TrainerState state;
  state.data = Json::Object{};
  for (const Json& saved : {layout, Json(Json::Object{{"ranks", 4}}), Json(Json::Object{})}) {
    state.layout = saved;
    EXPECT_EQ(resume::TrainerState::from_json(state.to_json(), "x").layout.dump(), saved.dump());
  }
}

TEST(ScheduleState, KeepsWsdAndDecoupledRates) {
  resume::TrainerState state;
  state.learning_rate = {.max = 1e-3,
                         .warmup = 10,
                         .decay = 100,
                         .style = optim::DecayStyle::wsd,
                         .wsd = 20,
                         .wsd_style = optim::WsdStyle::minus_sqrt,
                         .decoupled = optim::LearningRate::Range{2e-3, 1e-4}};
  state.optimizer_settings = Json::Object{{"lion-beta1", "0.9"}};
  state.data = state.layout = Json::Object{};
  const resume::TrainerState read = resume::TrainerState::from_json(state.to_json(), "x");
  EXPECT_TRUE(resume::schedule_differences(read, state.learning_rate, state.weight_decay).empty());
  EXPECT_EQ(read.optimizer_settings.dump(), state.optimizer_settings.dump());
  for (const int64_t n : {5, 50, 85, 100, 101}) {
    EXPECT_EQ(read.learning_rate.at(n), state.learning_rate.at(n));
    EXPECT_EQ(read.learning_rate.decoupled_at(n), state.learning_rate.decoupled_at(n));
  }
}

TEST(ScheduleState, FlagsRefuseWhatMegatronDoesNotKnow) {
  settings::OptimizerSettings settings;
  Fields fields;
  settings.fields(fields);
  const auto refused = [&](std::string_view flag, const std::string& value) {
    EXPECT_THROW(fields.find(flag)->assign({value}), Error) << flag << " " << value;
  };
  refused("lr-decay-style", "poly");
  refused("weight-decay-incr-style", "poly");
  refused("lr-wsd-decay-style", "poly");
  refused("muon-coefficient-type", "septic");
  refused("exp-avg-dtype", "fp4");
  fields.find("lr-wsd-decay-style")->assign({"minus_sqrt"});
  fields.find("muon-no-split-qkv")->assign({});
  EXPECT_EQ(settings.lr_wsd_decay_style, optim::WsdStyle::minus_sqrt);
  EXPECT_FALSE(settings.config.muon.split_qkv);
}

}  // namespace
}  // namespace megatron::resume
