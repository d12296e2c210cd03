#include "resume/setting_changes.h"

#include <gtest/gtest.h>

#include <set>

#include "training/run_plan.h"
#include "unit/training/small_settings.h"

namespace megatron::training {
namespace {

settings::TrainSettings with_steps(int64_t steps) {
  settings::TrainSettings s = small_settings();
  s.batch.train_iters = steps;
  s.data.mock_data = true;
  return s;
}

// The state that a run with these settings saves.
resume::TrainerState saved_by(const SettledRun& run) {
  const settings::TrainSettings& s = run.settings;
  resume::TrainerState state;
  state.precision = name(s.precision.type());
  state.optimizer = optim::name(s.optimizer.config.method);
  state.optimizer_settings = resume::optimizer_settings(s.optimizer);
  state.settings = resume::result_settings(s, run.model);
  state.learning_rate = s.optimizer.learning_rate(s.batch);
  state.weight_decay = s.optimizer.decay(s.batch);
  state.data = resume::data_settings(s, s.batch.base_samples());
  state.train_iters = s.batch.base_iters;
  state.layout = Json::Object{};
  return resume::TrainerState::from_json(state.to_json(), "x");
}

std::set<std::string> changes(const resume::TrainerState& saved,
                              const settings::TrainSettings& given) {
  const SettledRun run = settle_run(given);
  std::set<std::string> texts;
  for (const resume::SettingChange& change : resume::setting_changes(
           saved, run.settings, run.model, run.settings.optimizer.learning_rate(run.settings.batch),
           run.settings.optimizer.decay(run.settings.batch)))
    texts.insert(change.text());
  return texts;
}

TEST(SettingChanges, AreThoseThatTheNumbersFollowFrom) {
  const settings::TrainSettings before = with_steps(10);
  const resume::TrainerState saved = saved_by(settle_run(before));
  EXPECT_EQ(changes(saved, before), std::set<std::string>{});
  settings::TrainSettings now = before;
  now.runtime.threads = 2;
  now.log.log_interval = 7;
  now.optimizer.config.lion_beta1 = 0.5;  // Adam does not use it
  now.batch.micro_batch_size = 1;         // the global batch stays
  now.batch.global_batch_size = 2;
  EXPECT_EQ(changes(saved, now), std::set<std::string>{});
  now.optimizer.config.clip_grad = 0;
  now.optimizer.config.adam_beta2 = 0.95;
  now.optimizer.lr = 2e-3;
  now.shape.hidden_dropout = 0.25;
  now.batch.global_batch_size = 4;
  now.batch.train_iters = 5;
  EXPECT_EQ(changes(saved, now),
            (std::set<std::string>{
                "changed: clip-grad from 1 to 0", "changed: adam-beta2 from 0.999 to 0.95",
                "changed: lr from 0.001 to 0.002", "changed: hidden-dropout from 0.1 to 0.25",
                "changed: global-batch-size from 2 to 4"}));
}

TEST(SettingChanges, OfTheCommandLinesSchedule) {
  settings::TrainSettings before = with_steps(20);
  resume::TrainerState saved = saved_by(settle_run(before));
  saved.learning_rate.min = 1e-4;
  saved.weight_decay = {.start = 0, .end = 0.1, .steps = 8, .style = optim::DecayIncrease::linear};
  EXPECT_EQ(changes(saved, before),
            (std::set<std::string>{
                "changed: min-lr from 0.0001 to 0", "changed: start-weight-decay from 0 to 0.01",
                "changed: end-weight-decay from 0.1 to 0.01",
                "changed: weight-decay-incr-style from linear over 8 samples to constant over 40 "
                "samples"}));
  before.optimizer.lr_decay_style = optim::DecayStyle::constant;
  settings::TrainSettings longer = before;
  longer.batch.train_iters = 30;
  EXPECT_EQ(changes(saved_by(settle_run(before)), longer), std::set<std::string>{});
}

TEST(SettingChanges, AnOlderCheckpointIsNotComparedWithWhatItDoesNotTell) {
  settings::TrainSettings s = with_steps(10);
  resume::TrainerState saved = saved_by(settle_run(s));
  saved.settings = Json::Object{};
  s.optimizer.config.clip_grad = 0;
  EXPECT_EQ(changes(saved, s), std::set<std::string>{});
  EXPECT_EQ(
      resume::how_to_extend(resume::TrainerState{}, settle_run(with_steps(20)).settings.batch), "");
  EXPECT_EQ(resume::how_to_extend(saved, settle_run(with_steps(20)).settings.batch),
            "--train-iters 10 and --extend-to-iters 20");
}

// The original end decides the order and the schedule; with --override-opt-param-scheduler, the new
// end does.
TEST(ExtendToIters, LeavesWhatFollowsFromTheStepsOfBefore) {
  settings::TrainSettings s = with_steps(10);
  s.batch.extend_to_iters = 25;
  settings::TrainSettings plain = settle_run(s).settings;
  EXPECT_EQ(*plain.batch.train_iters, 25);
  EXPECT_EQ(plain.batch.total_samples(), 50);
  EXPECT_EQ(plain.batch.base_samples(), 20);
  EXPECT_EQ(plain.optimizer.learning_rate(plain.batch).decay, 20);
  EXPECT_EQ(plain.optimizer.decay(plain.batch).steps, 20);
  s.checkpoint.load = "x";
  s.checkpoint.override_scheduler = true;
  plain.checkpoint.override_scheduler = plain.batch.schedule_extended = true;
  EXPECT_EQ(plain.optimizer.learning_rate(plain.batch).decay, 50);
  EXPECT_EQ(plain.optimizer.decay(plain.batch).steps, 50);
}

}  // namespace
}  // namespace megatron::training
