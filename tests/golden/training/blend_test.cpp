// Runs on blends: the sources of the data, their order and their batches.
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/tolerances.h"
#include "corpus/corpus.h"
#include "corpus/prefetch.h"
#include "data/indexed_dataset.h"
#include "golden/training/support.h"

namespace megatron::training {
namespace {

// Writes `documents` documents of 40 tokens that count upwards by `step`.
std::string write_corpus(const std::string& prefix, int64_t documents, int32_t step) {
  data::IndexedDatasetBuilder builder(prefix, DType::u16);
  for (int64_t d = 0; d < documents; ++d) {
    std::vector<int32_t> tokens;
    for (int32_t t = 0; t < 39; ++t) tokens.push_back((static_cast<int32_t>(d) + t * step) % 96);
    tokens.push_back(96);
    builder.add_item(std::span<const int32_t>(tokens));
    builder.end_document();
  }
  builder.finalize();
  return prefix;
}

// A run on two corpora with weights 0.7 and 0.3.
struct Blended {
  TemporaryDirectory folder;
  std::string a = write_corpus(folder / "a", 60, 1), b = write_corpus(folder / "b", 50, 5);
  settings::TrainSettings settings = tiny_llama();

  Blended() {
    settings.data.mock_data = false;
    settings.data.data_path = {"0.7", a, "0.3", b};
    settings.data.split = "1";
  }
};

std::string error_of(const settings::TrainSettings& settings) {
  try {
    train(settings);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Blend, OneRankAndTwoGiveTheSameLosses) {
  Blended run;
  const auto one = train_losses(run.settings);
  EXPECT_TRUE(same_bits(one, train_losses(run.settings)));  // this time from the index cache
  for (const int64_t micro_batch : {1, 4}) {
    run.settings.runtime.ranks = 2;
    run.settings.batch.micro_batch_size = micro_batch;
    EXPECT_LE(distance(train_losses(run.settings), one), tolerance::kLayoutFp32) << micro_batch;
  }
  run.settings.data.data_path = {"0.3", run.a, "0.7", run.b};
  EXPECT_FALSE(same_bits(one, train_losses(run.settings)));
}

TEST(Blend, EverySourceOfTheSameListGivesTheSameBits) {
  Blended run;
  const auto expected = train_losses(run.settings);
  const std::vector<std::string> list = run.settings.data.data_path;
  run.settings.data.data_path.clear();
  settings::TrainSettings from_file = run.settings;
  write_file(run.folder / "list", fmt::format("0.7 {}\n0.3 {}\n", run.a, run.b));
  from_file.data.data_args_path = run.folder / "list";
  EXPECT_TRUE(same_bits(train_losses(from_file), expected));
  settings::TrainSettings own = run.settings;
  own.data.split.reset();
  own.data.train_data_path = list;
  EXPECT_TRUE(same_bits(train_losses(own), expected));
  settings::TrainSettings json = run.settings;
  json.data.split.reset();
  write_file(run.folder / "json",
             fmt::format(R"({{"train": ["0.7", "{}", 0.3, "{}"]}})", run.a, run.b));
  json.data.per_split_data_args_path = run.folder / "json";
  EXPECT_TRUE(same_bits(train_losses(json), expected));
  json.run.eval_interval = 5;
  EXPECT_NE(error_of(json).find("--valid-data-path"), std::string::npos) << error_of(json);
}

TEST(Blend, UnmappedFilesAndBuilderThreadsChangeNoBit) {
  Blended run;
  const auto expected = train_losses(run.settings);
  run.settings.data.mmap_bin_files = false;
  run.settings.data.builder_threads = 1;
  EXPECT_TRUE(same_bits(train_losses(run.settings), expected));
}

TEST(Blend, OneSourceOfDataOnly) {
  Blended run;
  settings::TrainSettings s = run.settings;
  s.data.mock_data = true;
  EXPECT_NE(error_of(s).find("--mock-data and --data-path"), std::string::npos) << error_of(s);
  s = run.settings;
  s.data.valid_data_path = {run.a};
  EXPECT_NE(error_of(s).find("--valid-data-path"), std::string::npos) << error_of(s);
  s = run.settings;
  s.data.data_path.clear();
  EXPECT_NE(error_of(s).find("there is no data"), std::string::npos) << error_of(s);
  s.data.train_data_path = {run.a};
  EXPECT_NE(error_of(s).find("--split 1 has no effect"), std::string::npos) << error_of(s);
  s = run.settings;
  s.data.data_path = {"1", run.a, "x", run.b};
  EXPECT_NE(error_of(s), "");
  s = run.settings;
  s.data.mid_level_dataset_surplus = -1;
  EXPECT_NE(error_of(s).find("--mid-level-dataset-surplus"), std::string::npos);
  s = run.settings;
  s.run.dataloader_type = "external";
  EXPECT_NE(error_of(s).find("external"), std::string::npos);
}

// 110 documents of 40 tokens make 137 samples of 32: 17 steps of 8.
TEST(Blend, WithoutWeightsIsReadOnce) {
  Blended run;
  run.settings.data.data_path = {run.a, run.b};
  run.settings.batch.train_iters = 17;
  EXPECT_EQ(train_losses(run.settings).size(), 17u);
  run.settings.batch.train_iters = 18;
  const std::string error = error_of(run.settings);
  EXPECT_NE(error.find("reads 144 train samples"), std::string::npos) << error;
  run.settings.run.dataloader_type = "cyclic";
  EXPECT_EQ(train_losses(run.settings).size(), 18u);
}

// Epochs of 19 + 21 samples. If undivided, an epoch's order does not depend on the ranks.
TEST(Blend, CyclicOrderGoesOnOverTheEpochs) {
  Blended run;
  settings::TrainSettings& s = run.settings;
  s.data.data_path = {write_corpus(run.folder / "c", 16, 1), write_corpus(run.folder / "d", 17, 5)};
  s.batch.micro_batch_size = 1;
  const auto in_order = train_losses(s);
  s.run.dataloader_type = "cyclic";
  const auto first_epoch = train_losses(s);
  EXPECT_FALSE(same_bits(first_epoch, in_order));
  s.batch.train_iters = 8;
  s.run.data_sharding = false;
  const auto one = train_losses(s);
  s.runtime.ranks = 2;
  EXPECT_LE(distance(train_losses(s), one), tolerance::kLayoutFp32);
}

TEST(Batches, FollowTheSchedule) {
  settings::TrainSettings s = tiny_llama();
  s.optimizer.lr_decay_iters = 1000;
  s.batch.train_iters = 6;
  s.batch.global_batch_size = 4;
  const auto constant = train_losses(s);
  s.batch.global_batch_size.reset();
  s.batch.step_batch_size_schedule = "0:4 256:8 1K:12";  // 32 tokens a sample: from samples 8, 31
  const TrainResult result = train(s);
  const std::vector<int64_t> batches = {4, 4, 8, 8, 8, 12};
  int64_t consumed = 0;
  ASSERT_EQ(result.iterations.size(), batches.size());
  for (size_t i = 0; i < batches.size(); ++i) {
    const IterationReport& report = result.iterations[i];
    optim::LearningRate rate = result.settings.optimizer.learning_rate(result.settings.batch);
    EXPECT_EQ(report.learning_rate, rate.at(consumed));
    EXPECT_EQ(report.batch, batches[i]);
    EXPECT_EQ(report.consumed, consumed += batches[i]);
  }
  const auto scheduled = losses(result);
  EXPECT_EQ(scheduled[0], constant[0]);
  EXPECT_NE(scheduled[2], constant[2]);
  for (const int64_t ranks : {1, 2}) {
    s.runtime.ranks = ranks;
    s.batch.micro_batch_size = 1;
    EXPECT_LE(distance(train_losses(s), scheduled), tolerance::kLayoutFp32) << ranks;
  }
}

TEST(Batches, RampUp) {
  settings::TrainSettings s = tiny_llama();
  s.batch.global_batch_size = 8;
  s.batch.rampup_batch_size = {"2", "2", "12"};  // 4 samples each: 2 2 4 6 8 ...
  const TrainResult result = train(s);
  std::vector<int64_t> batches;
  for (const IterationReport& report : result.iterations) batches.push_back(report.batch);
  EXPECT_EQ(batches, (std::vector<int64_t>{2, 2, 4, 6, 8}));
  s.batch.rampup_batch_size = {"2", "2"};
  EXPECT_NE(error_of(s).find("START INCREMENT SAMPLES"), std::string::npos) << error_of(s);
  s.batch.rampup_batch_size = {"2", "2", "x"};
  EXPECT_NE(error_of(s).find("'x'"), std::string::npos) << error_of(s);
}

TEST(Batches, AreRoundedDownOnlyWhenAsked) {
  settings::TrainSettings s = tiny_llama();
  s.batch.global_batch_size = 9;
  EXPECT_NE(error_of(s).find("--decrease-batch-size-if-needed"), std::string::npos);
  s.batch.decrease_batch_size = true;
  const TrainResult result = train(s);
  EXPECT_EQ(result.iterations.back().consumed, 40);
  s.batch.global_batch_size.reset();
  s.batch.step_batch_size_schedule = "0:8";
  EXPECT_NE(error_of(s).find("--decrease-batch-size-if-needed"), std::string::npos);
  s.batch.decrease_batch_size = false;
  s.batch.step_batch_size_schedule = "0:9";  // no suggestion that would be refused
  EXPECT_NE(error_of(s).find("--step-batch-size-schedule 9"), std::string::npos) << error_of(s);
  EXPECT_EQ(error_of(s).find("--decrease-batch-size-if-needed"), std::string::npos) << error_of(s);
  s.batch.step_batch_size_schedule = "0:8";
  s.batch.global_batch_size = 8;
  EXPECT_NE(error_of(s).find("--global-batch-size 8"), std::string::npos) << error_of(s);
}

TEST(Batches, SamplesInsteadOfIterations) {
  settings::TrainSettings s = tiny_llama();
  const auto iterations = train_losses(s);
  s.batch.train_iters.reset();
  s.batch.train_samples = 40;
  EXPECT_TRUE(same_bits(train_losses(s), iterations));
  s.batch.train_samples = 47;
  EXPECT_EQ(train_losses(s).size(), 5u);
  s.batch.train_samples = 7;
  EXPECT_NE(error_of(s).find("--train-samples 7"), std::string::npos) << error_of(s);
  s.batch.train_iters = 1;
  EXPECT_NE(error_of(s).find("--train-iters 1"), std::string::npos) << error_of(s);
}

TEST(Validation, TakesEachSetAsAWhole) {
  Blended run;
  settings::TrainSettings& s = run.settings;
  const std::string valid = write_corpus(run.folder / "valid", 13, 3);
  s.data.train_data_path = std::exchange(s.data.data_path, {});
  s.data.valid_data_path = {valid};
  s.data.split.reset();
  s.run.eval_interval = 5;
  s.run.eval_iters = 2;
  EXPECT_GT(train(s).validation_loss, 0);
  s.run.full_validation = true;
  const double alone = train(s).validation_loss;
  s.runtime.ranks = 2;
  EXPECT_LE(std::abs(train(s).validation_loss / alone - 1), tolerance::kLayoutFp32);
  s.runtime.ranks = 1;
  s.run.multiple_validation_sets = true;
  s.data.valid_data_path = {run.b, valid};
  s.run.validation_set_names = {"first", "second"};
  ::testing::internal::CaptureStdout();
  const double last = train(s).validation_loss;
  const std::string log = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(last, alone);
  EXPECT_NE(log.find("iteration 5 on first | lm loss value"), std::string::npos) << log;
  EXPECT_NE(log.find("iteration 5 on second | lm loss value"), std::string::npos) << log;
  EXPECT_NE(log.find(" left | lr "), std::string::npos) << log;
  s.run.validation_set_names = {"one"};
  EXPECT_NE(error_of(s).find("--validation-set-names has 1"), std::string::npos) << error_of(s);
  s.run.full_validation = false;
  EXPECT_NE(error_of(s).find("--full-validation"), std::string::npos) << error_of(s);
}

// As in Megatron-LM: once, after the last step.
TEST(Validation, EndsWithTheThirdShareOfTheSplit) {
  Blended run;
  settings::TrainSettings& s = run.settings;
  s.run.eval_iters = 1;
  const auto log_of = [&](const std::string& split) {
    s.data.split = split;
    ::testing::internal::CaptureStdout();
    train(s);
    return ::testing::internal::GetCapturedStdout();
  };
  s.run.eval_interval = 3;
  const std::string log = log_of("60,20,20");
  const size_t at = log.find("iteration 5 on test | lm loss value");
  ASSERT_NE(at, std::string::npos) << log;
  EXPECT_EQ(log.find(" on test |", at + 20), std::string::npos) << log;
  EXPECT_EQ(log_of("60,40,0").find(" on test |"), std::string::npos);
  s.run.eval_iters = 0;
  const std::string none = log_of("60,20,20");
  EXPECT_EQ(none.find("lm loss value"), std::string::npos) << none;
}

// Sample k holds k; reading number `bad` fails.
class Counting final : public data::Dataset {
 public:
  explicit Counting(int64_t bad = -1) : bad_(bad) {}
  int64_t size() const override { return 1000; }
  void read(int64_t k, data::Sample& sample) const override {
    MG_CHECK(k != bad_, "sample {} is bad", k);
    sample.tokens = sample.labels = sample.position_ids = {k, k};
    sample.loss_mask = {1, 1};
  }
  void read_filler(data::Sample& sample) const override { read(0, sample); }

 private:
  int64_t bad_;
};

std::unique_ptr<data::Sampler> in_order(int64_t micro_batch) {
  return std::make_unique<data::SequentialSampler>(
      data::SamplerShape{.total = 1000, .micro_batch_size = micro_batch});
}

corpus::HostBatch next(corpus::Prefetcher& data) {
  corpus::HostBatch batch;
  data.next(batch);
  return batch;
}

TEST(Prefetcher, KeepsTheOrder) {
  const Counting set;
  for (const int64_t capacity : {1, 3, 100}) {
    corpus::Prefetcher data(set, in_order(2), {.length = 2}, 20, capacity);
    for (int64_t i = 0; i < 20; ++i)
      EXPECT_EQ(next(data).sample_ids, (std::vector<int64_t>{2 * i, 2 * i + 1}));
    EXPECT_THROW(next(data), Error);
    EXPECT_GE(data.waited(), 0);
  }
}

TEST(Prefetcher, HandsOverErrorsWhereTheyBelong) {
  const Counting set(5);
  corpus::Prefetcher data(set, in_order(1), {.length = 2}, 20, 100);
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(next(data).sample_ids[0], i);
  for (int again = 0; again < 2; ++again) {
    try {
      next(data);
      FAIL();
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "sample 5 is bad");
    }
  }
}

TEST(Prefetcher, SaysThatTheDataEnd) {
  const Counting set;
  corpus::Prefetcher data(set, in_order(400), {.length = 2}, 20, 100);
  next(data);
  next(data);
  try {
    next(data);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("ends after 800 samples"), std::string::npos);
  }
}

TEST(Prefetcher, ReadsIntoTheMemoryThatComesBack) {
  const Counting set;
  corpus::Prefetcher data(set, in_order(2), {.length = 2}, 20, 1);
  std::set<const int32_t*> memory;
  corpus::HostBatch batch;
  for (int64_t i = 0; i < 20; ++i) {
    data.next(batch);
    EXPECT_EQ(batch.sample_ids, (std::vector<int64_t>{2 * i, 2 * i + 1}));
    memory.insert(batch.tokens.data());
  }
  EXPECT_LE(memory.size(), 3U);  // in use, ready, being read
}

TEST(Prefetcher, StopsWhenNobodyReads) {
  const Counting set;
  for (int i = 0; i < 50; ++i) {
    corpus::Prefetcher data(set, in_order(1), {.length = 2}, 1000, 2);
    if (i % 2 == 0) next(data);
  }
}

}  // namespace
}  // namespace megatron::training
