// Flags that are refused before any file is opened, by `megatron plan` and --print-config as by
// `megatron train`.
#include "training/settle.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "training/run_plan.h"
#include "unit/training/small_settings.h"

namespace megatron::training {
namespace {

using Words = std::vector<std::string>;

settings::TrainSettings small() {
  settings::TrainSettings s = small_settings();
  s.batch.global_batch_size = 8;
  s.batch.train_iters = 20;
  return s;
}

// The error for these flags, which are appended to those above; "" if there is none.
template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::string refusal_of(const std::vector<Words>& flags, settings::TrainSettings s = small()) {
  Fields fields = s.fields();
  for (const Words& flag : flags) {
    const Words values(flag.begin() + 1, flag.end());
    fields.find(flag[0])->assign(values);
  }
  const std::string text = refusal([&] { check_settings(s, true); });
  EXPECT_EQ(refusal([&] { settle_run(s); }), text) << "a plan says another thing";
  return text;
}

::testing::AssertionResult has(const std::string& text, const Words& parts) {
  for (const std::string& part : parts)
    if (text.find(part) == text.npos)
      return ::testing::AssertionFailure() << "'" << part << "' is not in '" << text << "'";
  return ::testing::AssertionSuccess();
}

TEST(Settle, APlanNeedsNoDataButChecksWhatIsSaidOfThem) {
  EXPECT_EQ(refusal_of({}), "");
  EXPECT_EQ(refusal_of({{"mock-data"}}), "");
  EXPECT_EQ(refusal_of({{"data-path", "/nowhere/a"}}), "");
  EXPECT_EQ(refusal_of({{"data-args-path", "/nowhere/list"}}), "");
  EXPECT_EQ(refusal_of({{"per-split-data-args-path", "/nowhere/list"}}), "");
  EXPECT_TRUE(has(refusal_of({{"mock-data"}, {"data-path", "a"}}), {"--mock-data", "--data-path"}));
  EXPECT_TRUE(has(refusal_of({{"split", "a"}}), {"split 'a'", "--split"}));
  EXPECT_TRUE(has(refusal_of({{"mock-data"}, {"split", "0,0,0"}}), {"'0,0,0'", "--split"}));
  EXPECT_TRUE(has(refusal_of({{"train-data-path", "a"}, {"split", "1,1,1"}}), {"--split 1,1,1"}));
  EXPECT_TRUE(has(refusal_of({{"data-path", "0.5", "a", "0.5", ""}}), {"--data-path", "empty"}));
  EXPECT_TRUE(has(refusal_of({{"data-path", "nan", "a", "1", "b"}}), {"--data-path", "nan"}));
  EXPECT_TRUE(has(refusal_of({{"data-path", ""}}), {"--data-path", "empty name"}));
  EXPECT_TRUE(
      has(refusal_of({{"data-path", "1e-300", "a", "1e300", "b"}}), {"weight", "too small"}));
  EXPECT_TRUE(
      has(refusal_of({{"mid-level-dataset-surplus", "2"}}), {"--mid-level-dataset-surplus"}));
  EXPECT_TRUE(
      has(refusal_of({{"num-dataset-builder-threads", "0"}}), {"--num-dataset-builder-thr"}));
  const std::vector<Words> sets = {{"eval-interval", "5"},
                                   {"full-validation"},
                                   {"multiple-validation-sets"},
                                   {"validation-set-names", "x"}};
  std::vector<Words> two = sets, one = sets, all = sets;
  two.push_back({"valid-data-path", "a", "b", "c"});
  one.push_back({"valid-data-path", "a"});
  all.push_back({"data-path", "a"});
  EXPECT_TRUE(has(refusal_of(two), {"--validation-set-names has 1 names", "3 validation sets"}));
  EXPECT_EQ(refusal_of(one), "");
  EXPECT_TRUE(has(refusal_of(all), {"--multiple-validation-sets"}));
}

// A prefix where a weight is expected belongs to a list without weights.
TEST(Settle, AListOfThreeHasNoWeights) {
  EXPECT_EQ(refusal_of({{"data-path", "0.5", "a", "0.5"}}), "");
}

TEST(Settle, SamplesAreCounted) {
  const std::string many = "4611686018427387904";
  EXPECT_TRUE(
      has(refusal_of({{"eval-iters", many}, {"eval-interval", "1"}}), {many, "--eval-iters"}));
  EXPECT_TRUE(has(refusal_of({{"eval-iters", many}, {"skip-train"}}), {many, "--eval-iters"}));
  EXPECT_TRUE(has(refusal_of({{"eval-iters", "576460752303423487"}, {"eval-interval", "1"}}),
                  {"overflow a 64-bit count"}))
      << "one evaluation fits, 21 do not";
  EXPECT_EQ(refusal_of({{"eval-iters", many}}), "") << "there is no evaluation";
}

TEST(Settle, LimitsAreThoseOfTheFlagThatIsGiven) {
  const Words limit = {"must lie in [1, 268435456]"};
  for (const std::string value : {"0", "-1", "268435457", "2147483647"}) {
    EXPECT_TRUE(has(refusal_of({{"vocab-size", value}}), {"--vocab-size is " + value, limit[0]}));
    EXPECT_TRUE(has(refusal_of({{"seq-length", value}}), {"--seq-length is " + value, limit[0]}));
  }
  for (const std::string flag : {"kv-channels", "ffn-hidden-size"})
    EXPECT_TRUE(has(refusal_of({{flag, "0"}}), {"--" + flag + " is 0; it must lie in [1, "}));
  EXPECT_TRUE(has(refusal_of({{"group-query-attention"}, {"num-query-groups", "0"}}),
                  {"--num-query-groups is 0"}));
  EXPECT_TRUE(has(refusal_of({{"num-layers", "0"}}), {"--num-layers is 0"}));
  EXPECT_TRUE(has(refusal_of({{"max-position-embeddings", "8"}}), {"--seq-length is 16", "8 pos"}));
  EXPECT_TRUE(has(refusal_of({{"bf16"}, {"fp16"}}), {"--bf16", "--fp16"}));
  EXPECT_TRUE(has(refusal_of({{"model", "/nowhere"}, {"swiglu"}}), {"--model /nowhere both give"}));
}

TEST(Settle, TheWarmUpIsToldInTheUnitOfTheRun) {
  EXPECT_EQ(refusal_of({{"lr-warmup-iters", "30"}}),
            "--lr-warmup-iters is 30, but the learning rate decays over 20 iterations "
            "(--train-iters): the warm-up must be shorter; lower the warm-up or raise the decay");
  EXPECT_TRUE(has(refusal_of({{"lr-warmup-iters", "9"}, {"lr-decay-iters", "9"}}),
                  {"--lr-warmup-iters is 9", "9 iterations (--lr-decay-iters)"}));
  EXPECT_EQ(refusal_of({{"lr-warmup-iters", "8"}, {"lr-decay-iters", "9"}}), "");
  EXPECT_TRUE(has(refusal_of({{"lr-warmup-iters", "-1"}}), {"--lr-warmup-iters is -1"}));
  EXPECT_TRUE(has(refusal_of({{"lr-decay-iters", "0"}}), {"--lr-decay-iters is 0"}));
  EXPECT_EQ(refusal_of({{"lr-warmup-fraction", "0.1"}, {"lr-warmup-iters", "5"}}),
            "--lr-warmup-fraction 0.1 and --lr-warmup-iters 5 both set the length of the warm-up: "
            "give one");
  settings::TrainSettings by_samples = small();
  by_samples.batch.train_iters.reset();
  by_samples.batch.train_samples = 100;
  EXPECT_TRUE(has(refusal_of({{"lr-warmup-samples", "100"}}, by_samples),
                  {"--lr-warmup-samples is 100", "100 samples (--train-samples)"}));
  settings::TrainSettings open = small();  // as long as its warm-up needs
  open.batch.train_iters.reset();
  EXPECT_EQ(refusal_of({{"lr-warmup-iters", "30"}}, open), "");
  EXPECT_TRUE(has(refusal_of({{"min-lr", "1"}}, open), {"--min-lr is 1"}));
}

// A plan needs no --lr, but still checks the other flags.
TEST(Settle, TheScheduleIsCheckedWithoutALearningRate) {
  settings::TrainSettings s = small();
  s.optimizer.lr.reset();
  EXPECT_EQ(refusal_of({}, s), "");
  EXPECT_EQ(refusal_of({{"min-lr", "7"}}, s), "");
  EXPECT_TRUE(has(refusal_of({{"lr-warmup-iters", "30"}}, s), {"--lr-warmup-iters is 30", "20"}));
  EXPECT_TRUE(has(refusal_of({{"min-lr", "-1"}}, s), {"--min-lr is -1"}));
  EXPECT_TRUE(has(refusal_of({{"lr-warmup-samples", "5"}}, s),
                  {"--lr-warmup-samples needs --train-samples"}));
  EXPECT_TRUE(has(refusal_of({{"lr-decay-style", "WSD"}}, s), {"needs --lr-wsd-decay-iters"}));
  EXPECT_TRUE(has(refusal_of({{"lr-decay-style", "WSD"}, {"lr-wsd-decay-iters", "0"}}, s),
                  {"--lr-wsd-decay-iters is 0; it must be positive"}));
  s.batch.train_iters.reset();
  EXPECT_EQ(refusal_of({{"lr-warmup-iters", "1099511627776"}}, s),
            "--lr-warmup-iters is 1099511627776; it must lie in [0, 2147483648]");
}

// Flags that `train` needs in addition to those of a plan.
TEST(Settle, ARunIsCheckedAsAWhole) {
  settings::TrainSettings s = small();
  s.data.mock_data = true;
  EXPECT_EQ(refusal([&] { check_settings(s, false); }), "");
  settings::TrainSettings other = s;
  other.optimizer.lr.reset();
  EXPECT_EQ(refusal([&] { check_settings(other, false); }), "--lr is needed");
  other = s;
  other.batch.train_iters.reset();
  EXPECT_TRUE(has(refusal([&] { check_settings(other, false); }), {"--train-iters"}));
  other = s;
  other.data.mock_data = false;
  EXPECT_TRUE(has(refusal([&] { check_settings(other, false); }), {"there is no data"}));
  other = s;
  other.shape.num_layers = 0;
  EXPECT_TRUE(has(refusal([&] { check_settings(other, false); }), {"--num-layers"}));
}

TEST(Settle, NothingIsOpened) {
  settings::TrainSettings s = small();
  s.shape = {};
  s.run.model = "/nowhere";
  EXPECT_NO_THROW(check_settings(s, true));
  s.run.model.reset();
  s.checkpoint.load = "/nowhere";
  EXPECT_NO_THROW(check_settings(s, true));
  s = small();
  s.shape.vocab_size.reset();
  s.data.tokenizer_model = "/nowhere";
  EXPECT_NO_THROW(check_settings(s, true));
  s.parallel.tensor_parallel = 3;
  s.runtime.ranks = 4;
  EXPECT_TRUE(has(refusal([&] { check_settings(s, true); }), {"4 ranks cannot be divided"}));
}

}  // namespace
}  // namespace megatron::training
