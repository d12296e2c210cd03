// A run that stops and resumes equals a run that never stopped.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <csignal>
#include <mutex>

#include "base/error.h"
#include "base/files.h"
#include "base/tolerances.h"
#include "checkpoint/checkpoint_directory.h"
#include "golden/training/support.h"
#include "resume/save_directory.h"

namespace megatron::training {
namespace {

settings::TrainSettings saving(settings::TrainSettings s, const std::string& folder) {
  s.checkpoint.save = s.checkpoint.load = folder;
  s.checkpoint.save_interval = 2;
  s.batch.train_iters = 7;
  s.log.log_interval = 1;
  return s;
}

// Runs steps 1 to `stop`, and the remaining steps in a second run.
std::vector<double> in_two_runs(settings::TrainSettings s, int64_t stop,
                                const TrainHooks& hooks = {}) {
  s.checkpoint.exit_interval = stop;
  const TrainResult first = train(s, hooks);
  EXPECT_EQ(first.end, report::EndReason::exit_interval);
  s.checkpoint.exit_interval.reset();
  const TrainResult second = train(s, hooks);
  EXPECT_EQ(second.first_iteration, stop);
  std::vector<double> all = losses(first);
  for (const double loss : losses(second)) all.push_back(loss);
  return all;
}

void expect_same_checkpoint(const std::string& a, const std::string& b) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(a)) {
    const std::string name = "/" + entry.path().filename().string();
    EXPECT_TRUE(read_file(a + name) == read_file(b + name)) << a + name << " and " << b + name;
    ++files;
  }
  EXPECT_GE(files, 4);
}

class EveryResume
    : public ::testing::TestWithParam<std::tuple<DType, optim::Method, int /*ranks*/>> {};

TEST_P(EveryResume, HasTheBitsOfOneRun) {
  const auto [type, method, ranks] = GetParam();
  const TrainHooks quick{.peak = 1e12};  // no peak is measured
  const TemporaryDirectory folder;
  settings::TrainSettings s = type == DType::f32 ? tiny_gpt2() : tiny_llama();
  s.precision.bf16 = type == DType::bf16;
  s.precision.fp16 = type == DType::f16;
  // The initial scale is too large, and the run stops within a window.
  s.precision.loss_scaling = {.initial = 0x1p17, .window = 2, .hysteresis = 1};
  if (!s.precision.fp16) s.precision.loss_scaling = {};
  s.optimizer.config.method = method;
  s.optimizer.lr_warmup_iters = 2;
  s.shape.attention_dropout = 0.2;
  if (type == DType::f32) s.shape.hidden_dropout = 0.2;  // Llama has none
  s.runtime.ranks = ranks;
  const settings::TrainSettings whole = saving(s, folder / "whole"),
                                parts = saving(s, folder / "parts");
  const auto expected = train_losses(whole, quick);
  EXPECT_TRUE(same_bits(in_two_runs(parts, 3, quick), expected));
  expect_same_checkpoint(folder / "whole/iter_0000007", folder / "parts/iter_0000007");
}

std::string kind_name(const ::testing::TestParamInfo<EveryResume::ParamType>& info) {
  const auto& [type, method, ranks] = info.param;
  return fmt::format("{}_{}_{}", name(type), optim::name(method), ranks);
}

INSTANTIATE_TEST_SUITE_P(Resume, EveryResume,
                         ::testing::Combine(::testing::Values(DType::f32, DType::bf16, DType::f16),
                                            ::testing::Values(optim::Method::adam,
                                                              optim::Method::sgd),
                                            ::testing::Values(1, 2)),
                         kind_name);

TEST(Resume, CyclicOrderGoesOnInTheMiddleOfAnEpoch) {
  for (const bool sharded : {true, false}) {
    const TemporaryDirectory folder;
    settings::TrainSettings s = tiny_llama();
    s.run.dataloader_type = "cyclic";
    s.run.data_sharding = sharded;
    s.runtime.ranks = 2;
    const auto expected = train_losses(saving(s, folder / "whole"));
    EXPECT_TRUE(same_bits(in_two_runs(saving(s, folder / "parts"), 3), expected));
  }
}

TEST(Resume, AnyNumberOfRanksGoesOn) {
  const TemporaryDirectory folder;
  const auto expected = train_losses(saving(tiny_llama(), folder / "whole"));
  for (const auto& [before, after] : {std::pair{1, 2}, {2, 4}, {4, 1}}) {
    settings::TrainSettings s = saving(tiny_llama(), folder / fmt::format("{}-{}", before, after));
    s.runtime.ranks = before;
    s.checkpoint.exit_interval = 4;
    train(s);
    s.checkpoint.exit_interval.reset();
    s.runtime.ranks = after;
    const TrainResult rest = train(s);
    const std::vector<double> tail(expected.begin() + 4, expected.end());
    EXPECT_LE(distance(losses(rest), tail), tolerance::kLayoutFp32) << before << " to " << after;
  }
}

TEST(Resume, FilesDoNotDependOnTheRanksThatSave) {
  const TemporaryDirectory folder;
  for (const int ranks : {1, 2, 4}) {
    settings::TrainSettings s = saving(tiny_llama(), folder / std::to_string(ranks));
    s.runtime.ranks = ranks;
    s.optimizer.lr = s.optimizer.min_lr = 0;  // tensors keep their values
    s.optimizer.config.clip_grad = 0;
    s.batch.train_iters = 1;
    train(s);
    EXPECT_EQ(read_file(folder / "1/iter_0000001/model.safetensors"),
              read_file(folder / (std::to_string(ranks) + "/iter_0000001/model.safetensors")));
  }
}

class FullDisk final : public FileSystem {
 public:
  int64_t free_bytes(const std::string&) const override { return 1000; }
};

TEST(Resume, ARunThatIsDoneStaysAsItIs) {
  const TemporaryDirectory folder;
  const settings::TrainSettings s = saving(tiny_llama(), folder / "run");
  train(s);
  const TrainResult again = train(s);
  EXPECT_TRUE(again.iterations.empty());
  EXPECT_EQ(again.first_iteration, 7);
  const FullDisk disk;
  EXPECT_TRUE(train(s, {.files = &disk}).iterations.empty());
}

TEST(Resume, WithoutCheckpointItStartsFromScratchUnlessForbidden) {
  const TemporaryDirectory folder;
  settings::TrainSettings s = saving(tiny_llama(), folder / "run");
  s.checkpoint.exit_on_missing_checkpoint = true;
  EXPECT_THROW(train(s), Error);
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
  s.checkpoint.exit_on_missing_checkpoint = false;
  EXPECT_EQ(train(s).iterations.size(), 7u);
}

std::string error_of(const settings::TrainSettings& s) {
  try {
    train(s);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

class ResumeErrors : public ::testing::Test {
 protected:
  ResumeErrors() : settings_(saving(tiny_llama(), folder_ / "run")) {
    settings_.checkpoint.exit_interval = 4;
    train(settings_);
    settings_.checkpoint.exit_interval.reset();
  }
  void expect_error(const settings::TrainSettings& s,
                    std::initializer_list<std::string_view> parts) {
    const std::string text = error_of(s);
    for (const std::string_view part : parts) EXPECT_NE(text.find(part), text.npos) << text;
  }
  TemporaryDirectory folder_;
  settings::TrainSettings settings_;
};

TEST_F(ResumeErrors, AnotherShape) {
  settings_.shape.num_layers = 3;
  expect_error(settings_, {"num-layers 2 in the checkpoint and 3 now", "iter_0000004"});
}
TEST_F(ResumeErrors, AnotherVocabulary) {
  settings_.shape.vocab_size = 98;
  expect_error(settings_, {"vocab-size 97 in the checkpoint and 98 now"});
}
TEST_F(ResumeErrors, AnotherScheduleUnlessOneIsChosen) {
  settings_.optimizer.lr = 1e-3;
  expect_error(settings_,
               {"lr 0.005 in the checkpoint and 0.001 now", "--override-opt-param-scheduler",
                "--use-checkpoint-opt-param-scheduler"});
  settings_.checkpoint.use_checkpoint_scheduler = true;
  const TrainResult kept = train(settings_);
  settings::TrainSettings plain = saving(tiny_llama(), folder_ / "plain");
  const TrainResult whole = train(plain);
  EXPECT_EQ(kept.iterations.back().learning_rate, whole.iterations.back().learning_rate);
}
TEST_F(ResumeErrors, TheScheduleOfTheCommandLine) {
  settings_.optimizer.lr = 1e-3;
  settings_.checkpoint.override_scheduler = true;
  EXPECT_LT(train(settings_).iterations.front().learning_rate, 1e-3);
}
TEST_F(ResumeErrors, AnotherOptimizerOrPrecision) {
  settings_.optimizer.config.method = optim::Method::sgd;
  expect_error(settings_, {"--optimizer adam", "--no-load-optim"});
  settings_.optimizer.config.method = optim::Method::adam;
  settings_.precision.bf16 = true;
  expect_error(settings_, {"f32", "bf16", "--no-load-optim"});
  settings_.checkpoint.load_optimizer = false;
  EXPECT_EQ(train(settings_).iterations.size(), 3u);
}
TEST(Resume, MomentumMustStay) {
  const TemporaryDirectory folder;
  for (const double momentum : {0.0, 0.9}) {
    settings::TrainSettings s = saving(tiny_llama(), folder / fmt::format("{}", momentum));
    s.optimizer.config.method = optim::Method::sgd;
    s.optimizer.config.sgd_momentum = momentum;
    s.checkpoint.exit_interval = 4;
    train(s);
    s.checkpoint.exit_interval.reset();
    s.optimizer.config.sgd_momentum = 0.9 - momentum;
    const std::string text = error_of(s);
    EXPECT_NE(text.find(momentum > 0 ? "with momentum" : "without momentum"), text.npos) << text;
    EXPECT_NE(text.find("--no-load-optim"), text.npos) << text;
    s.optimizer.config.sgd_momentum = momentum;
    EXPECT_EQ(train(s).iterations.size(), 3u);
  }
}

TEST_F(ResumeErrors, AStepThatIsNotThere) {
  settings_.checkpoint.ckpt_step = 3;
  expect_error(settings_, {"--ckpt-step 3", "the newest is from step 4"});
}
TEST_F(ResumeErrors, ANewerFormat) {
  const std::string file = folder_ / "run/iter_0000004/trainer_state.json";
  std::string text = read_file(file);
  const size_t at = text.find("\"format\"");
  text.replace(text.find('1', at), 1, "9");
  write_file(file, text);
  expect_error(settings_, {"newer"});
}
TEST_F(ResumeErrors, SavingOverAnotherRun) {
  settings_.checkpoint.load.reset();
  expect_error(settings_, {"up to iteration 4", "--load"});
}
TEST_F(ResumeErrors, AModelWithoutTrainerState) {
  std::filesystem::remove(folder_ / "run/iter_0000004/trainer_state.json");
  settings_.checkpoint.save.reset();
  settings_.checkpoint.save_interval.reset();
  settings_.checkpoint.load = folder_ / "run/iter_0000004";
  expect_error(settings_, {"--finetune"});
}

// The previous checkpoint is used, and training later overwrites the damaged one.
TEST_F(ResumeErrors, ADamagedCheckpointIsPassedOver) {
  const std::string file = folder_ / "run/iter_0000004/model.safetensors";
  std::string text = read_file(file);
  text[text.size() - 5] ^= 1;
  write_file(file, text);
  const TrainResult result = train(settings_);
  EXPECT_EQ(result.first_iteration, 2);
  const checkpoint::CheckpointDirectory mended(folder_ / "run/iter_0000004");
  ThreadPool pool(1);
  mended.verify(pool);
  const TrainResult whole = train(saving(tiny_llama(), folder_ / "plain"));
  expect_same_checkpoint(result.saved, whole.saved);
}

TEST_F(ResumeErrors, AllDamagedIsAnError) {
  for (const auto step : {"2", "4"})
    std::filesystem::resize_file(
        folder_ / (std::string("run/iter_000000") + step + "/optimizer-00001-of-00001.safetensors"),
        100);
  expect_error(settings_, {"none of the 2 checkpoints", "is intact"});
}

// The process ended between the first rename and the first tracker.
TEST_F(ResumeErrors, WithoutTrackerTheNewestIsTaken) {
  std::filesystem::remove(folder_ / "run/latest_checkpointed_iteration.txt");
  EXPECT_EQ(train(settings_).first_iteration, 4);
}

// A directory that a run has used is not accidentally started from the beginning.
TEST_F(ResumeErrors, ATrackerThatNamesWhatIsNotThere) {
  const std::string run = folder_ / "run", tracker = run + "/latest_checkpointed_iteration.txt";
  write_file(tracker, "1");
  expect_error(settings_, {"names step 1", "later steps, 2 to 4"});
  EXPECT_EQ(read_file(tracker), "1");
  write_file(tracker, "4");
  std::filesystem::remove_all(run + "/iter_0000004");
  EXPECT_EQ(train(settings_).first_iteration, 2);
  for (const std::string name : {"2", "4", "6", "7"})
    std::filesystem::remove_all(run + "/iter_000000" + name);
  expect_error(settings_, {"names step 7", "there are no checkpoints", "remove the tracker file"});
  std::filesystem::remove(tracker);
  EXPECT_EQ(train(settings_).first_iteration, 0);
}

TEST_F(ResumeErrors, AFolderThatIsNone) {
  settings_.checkpoint.save.reset();
  settings_.checkpoint.save_interval.reset();
  settings_.checkpoint.load = folder_ / "run/log.jsonl";
  expect_error(settings_, {"log.jsonl is a file"});
  std::filesystem::create_directory_symlink("loop", folder_ / "loop");
  settings_.checkpoint.load = folder_ / "loop";
  expect_error(settings_, {"loop cannot be searched"});
  settings_.checkpoint.load = folder_ / "run/iter_0000004/";
  expect_error(settings_, {"give the folder that contains it, " + folder_ / "run,", "--ckpt-step"});
}

TEST_F(ResumeErrors, FinetuneDoesNotSaveOverItsBeginning) {
  settings_.checkpoint.finetune = true;
  expect_error(settings_, {"up to iteration 4", "--finetune", "another --save"});
}

// Step numbers continue, and samples continue where the first part ended.
TEST_F(ResumeErrors, OtherBatchSizesGoOn) {
  settings_.checkpoint.override_scheduler = true;
  for (const int64_t batch : {2, 16}) {
    settings::TrainSettings s = settings_;
    s.batch.global_batch_size = batch;
    s.checkpoint.save.reset();
    s.checkpoint.save_interval.reset();
    const TrainResult result = train(s);
    ASSERT_EQ(result.iterations.size(), 3u);
    EXPECT_EQ(result.iterations.back().consumed,
              4 * *settings_.batch.global_batch_size + 3 * batch);
  }
}

TEST_F(ResumeErrors, AnOlderStepIsGoneOnFrom) {
  settings_.checkpoint.ckpt_step = 2;
  const TrainResult result = train(settings_);
  EXPECT_EQ(result.first_iteration, 2);
  EXPECT_EQ(result.iterations.size(), 5u);
}

TEST_F(ResumeErrors, ShapeAndTokenizerComeFromTheCheckpoint) {
  settings_.shape = {};
  EXPECT_EQ(train(settings_).model->num_layers(), 2);
}

TEST_F(ResumeErrors, FinetuneTakesTheWeightsAlone) {
  settings_.checkpoint.finetune = true;
  settings_.checkpoint.save.reset();
  settings_.checkpoint.save_interval.reset();
  const TrainResult result = train(settings_);
  EXPECT_EQ(result.first_iteration, 0);
  EXPECT_LT(result.iterations.front().loss, losses(train(tiny_llama())).front());
  settings_.checkpoint.load = folder_ / "run/iter_0000004";
  EXPECT_EQ(losses(train(settings_)), losses(result));
}

// Fine-tuning does not fall back on an older checkpoint.
TEST_F(ResumeErrors, FinetuneRefusesADamagedCheckpoint) {
  const std::string file = folder_ / "run/iter_0000004/model.safetensors";
  std::string bytes = read_file(file);
  bytes[bytes.size() - 2] ^= 1;
  write_file(file, bytes);
  settings_.checkpoint.finetune = true;
  settings_.checkpoint.save.reset();
  settings_.checkpoint.save_interval.reset();
  settings_.checkpoint.load = folder_ / "run/iter_0000004";
  expect_error(settings_, {"iter_0000004", "model.safetensors", "checksum"});
  settings_.checkpoint.load.reset();
  settings_.shape = {};
  settings_.run.model = folder_ / "run/iter_0000004";
  expect_error(settings_, {"iter_0000004", "model.safetensors", "checksum"});
}

TEST_F(ResumeErrors, SeedOfDropoutIsTheCheckpoints) {
  settings_.shape.attention_dropout = 0.3;
  const auto expected = train_losses(settings_);
  settings_.checkpoint.save.reset();
  settings_.checkpoint.save_interval.reset();
  settings_.checkpoint.ckpt_step = 4;
  EXPECT_EQ(train_losses(settings_), expected);
  settings_.runtime.seed = 99;  // also decides the order of the samples
  const auto kept = train_losses(settings_);
  settings_.checkpoint.load_rng = false;
  EXPECT_NE(train_losses(settings_), kept);
}

TEST(Saving, KeepsTheLastOnesAndMultiples) {
  const TemporaryDirectory folder;
  settings::TrainSettings s = saving(tiny_llama(), folder / "run");
  s.checkpoint.save_interval = 1;
  s.batch.train_iters = 9;
  s.checkpoint.save_keep = 2;
  s.checkpoint.save_retain_interval = 4;
  train(s);
  EXPECT_EQ(resume::SaveDirectory(folder / "run").iterations(), (std::vector<int64_t>{4, 8, 9}));
}

TEST(Saving, ASignalSavesAndEnds) {
  const TemporaryDirectory folder;
  settings::TrainSettings s = saving(tiny_llama(), folder / "run");
  s.checkpoint.exit_signal_handler = true;
  const auto expected = train_losses(saving(tiny_llama(), folder / "whole"));
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    const std::array watched = {SIGTERM, SIGINT, SIGUSR1};
    SignalWatch watch(watched);
    TrainHooks hooks{.signals = &watch};
    hooks.after_step = [&](const IterationReport& report) {
      if (report.iteration == 3) raise(signal);
    };
    s.checkpoint.save = s.checkpoint.load = folder / std::to_string(signal);
    const TrainResult first = train(s, hooks);
    EXPECT_EQ(first.end, report::EndReason::signal);
    EXPECT_EQ(first.signal, signal);
    EXPECT_EQ(first.iterations.size(), 3u);
    const TrainResult rest = train(s);
    EXPECT_EQ(losses(rest), std::vector<double>(expected.begin() + 3, expected.end()));
  }
}

TEST(Saving, ADurationSavesAndEnds) {
  const TemporaryDirectory folder;
  settings::TrainSettings s = saving(tiny_llama(), folder / "run");
  s.checkpoint.exit_duration_in_mins = 1e-9;
  const TrainResult result = train(s);
  EXPECT_EQ(result.end, report::EndReason::exit_duration);
  EXPECT_EQ(result.saved, folder / "run/iter_0000001");
}

// A disk on which every write fails while `broken` is set.
class BrokenDisk final : public FileSystem {
 public:
  std::atomic<bool> broken = false;
  int64_t write(int file, std::span<const std::byte> bytes) const override {
    return broken ? (errno = EIO, -1) : FileSystem::write(file, bytes);
  }
  int64_t write_at(int file, std::span<const std::byte> bytes, int64_t offset) const override {
    return broken ? (errno = EIO, -1) : FileSystem::write_at(file, bytes, offset);
  }
};

TEST(Saving, AFailureLeavesTheLastGoodOneAndTheRunGoesOn) {
  const TemporaryDirectory folder;
  settings::TrainSettings s = saving(tiny_llama(), folder / "run");
  s.runtime.ranks = 2;
  BrokenDisk disk;
  TrainHooks hooks{.files = &disk};
  hooks.after_step = [&](const IterationReport& report) {
    if (report.iteration == 4) disk.broken = true;
    if (report.iteration == 6) disk.broken = false;
  };
  const TrainResult result = train(s, hooks);
  EXPECT_EQ(result.iterations.size(), 7u);
  const resume::SaveDirectory saved(folder / "run");
  EXPECT_EQ(saved.iterations(), (std::vector<int64_t>{2, 6, 7}));
  EXPECT_EQ(saved.tracked(), 7);

  s.checkpoint.save = s.checkpoint.load = folder / "strict";
  s.checkpoint.exit_on_save_failure = true;
  EXPECT_THROW(train(s, hooks), Error);
  EXPECT_EQ(resume::SaveDirectory(folder / "strict").iterations(), (std::vector<int64_t>{2}));
  EXPECT_EQ(resume::SaveDirectory(folder / "strict").tracked(), 2);
}

// A failure to save the last step is always an error, and repeating the command recovers from it.
TEST(Saving, AFailureBehindTheRunsBackIsTold) {
  const TemporaryDirectory folder;
  settings::TrainSettings s = saving(tiny_llama(), folder / "run");
  s.runtime.ranks = 2;
  s.checkpoint.async_save = true;
  BrokenDisk disk;
  TrainHooks hooks{.files = &disk};
  hooks.after_step = [&](const IterationReport& report) { disk.broken = report.iteration > 3; };
  EXPECT_THROW(train(s, hooks), Error);
  EXPECT_NE(resume::SaveDirectory(folder / "run").tracked(), 4);
  EXPECT_EQ(train(s).iterations.back().iteration, 7);
  EXPECT_EQ(resume::SaveDirectory(folder / "run").tracked(), 7);
}

// A disk that flushes a file only after the run has continued.
class PatientDisk final : public FileSystem {
 public:
  int sync(int file) const override {
    std::unique_lock lock(mutex_);
    started_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    return FileSystem::sync(file);
  }
  void wait_for_a_save() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return started_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable bool started_ = false;
  bool open_ = false;
};

TEST(Saving, AnAsynchronousSaveHoldsWhatWasWhenItBegan) {
  for (const int ranks : {1, 2}) {
    const TemporaryDirectory folder;
    settings::TrainSettings s = saving(tiny_llama(), folder / "plain");
    s.runtime.ranks = ranks;
    s.checkpoint.save_interval = 3;
    const auto expected = train_losses(s);
    s.checkpoint.save = s.checkpoint.load = folder / "async";
    s.checkpoint.async_save = true;
    PatientDisk disk;
    TrainHooks hooks{.files = &disk};
    int64_t in_flight = 0;
    hooks.after_step = [&](const IterationReport& report) {
      if (report.iteration == 4) disk.wait_for_a_save();
      if (report.iteration < 5) return;
      in_flight += !std::filesystem::exists(folder / "async/iter_0000003");
      disk.open();
    };
    EXPECT_TRUE(same_bits(train_losses(s, hooks), expected));
    EXPECT_GE(in_flight, 1) << "steps waited for the save";
    for (const auto name : {"/iter_0000003", "/iter_0000006", "/iter_0000007"})
      expect_same_checkpoint(folder / ("plain" + std::string(name)),
                             folder / ("async" + std::string(name)));
  }
}

TEST(Saving, TwoRunsDoNotWriteToOneFolder) {
  const TemporaryDirectory folder;
  settings::TrainSettings s = saving(tiny_llama(), folder / "run");
  TrainHooks hooks;
  int refused = 0;
  hooks.after_step = [&](const IterationReport& report) {
    if (report.iteration == 1)
      refused += error_of(s).find("another run is writing") != std::string::npos;
  };
  train(s, hooks);
  EXPECT_EQ(refused, 1);
}

TEST(Saving, LeftoversOfEndedRunsAreCleared) {
  const TemporaryDirectory folder;
  std::filesystem::create_directories(folder / "run/iter_0000002.tmp");
  write_file(folder / "run/iter_0000002.tmp/model.safetensors", "half");
  train(saving(tiny_llama(), folder / "run"));
  EXPECT_FALSE(std::filesystem::exists(folder / "run/iter_0000002.tmp"));
}

TEST(Saving, AFullDiskIsToldBeforeTheFirstStep) {
  const TemporaryDirectory folder;
  const FullDisk disk;
  int steps = 0;
  TrainHooks hooks{.files = &disk};
  hooks.after_step = [&](const IterationReport&) { ++steps; };
  EXPECT_THROW(train(saving(tiny_llama(), folder / "run"), hooks), Error);
  EXPECT_EQ(steps, 0);
}

TEST(Saving, FlagsThatMakeNoSense) {
  const auto refused = [](auto&& change, std::string_view part) {
    settings::TrainSettings s = tiny_llama();
    change(s.checkpoint);
    const std::string text = error_of(s);
    EXPECT_NE(text.find(part), text.npos) << text;
  };
  refused([](auto& c) { c.save_interval = 2; }, "--save-interval needs --save");
  refused(
      [](auto& c) {
        c.save = "x";
        c.save_keep = 0;
      },
      "--save-keep is 0");
  refused([](auto& c) { c.save = ""; }, "--save is empty");
  refused([](auto& c) { c.load = ""; }, "--load is empty");
  refused([](auto& c) { c.exit_interval = -1; }, "--exit-interval is -1");
}

}  // namespace
}  // namespace megatron::training
