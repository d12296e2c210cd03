// The work of `megatron train` besides its steps: samples, signals and saves.
#include <chrono>
#include <csignal>
#include <thread>

#include "base/json.h"
#include "golden/cli/tiny_run.h"
#include "tokenizers/tokenizer.h"

namespace megatron::testing {
namespace {

class TrainingRun : public ::testing::Test {
 protected:
  void SetUp() override { make_tiny_run(place_); }

  Words command(int steps, const std::string& folder, const Words& more) const {
    return with(
        with(tiny_train(steps), {"--save", folder, "--load", folder, "--log-interval", "1"}), more);
  }
  std::vector<Json> records(const std::string& folder, std::string_view type) const {
    std::vector<Json> found;
    const std::string text = read_file(place_ / (folder + "/log.jsonl"));
    for (size_t at = 0, end; (end = text.find('\n', at)) != text.npos; at = end + 1) {
      Json record = Json::parse(std::string_view(text).substr(at, end - at));
      if (record["type"].as_string() == type) found.push_back(std::move(record));
    }
    return found;
  }
  Workplace place_;
};

TEST_F(TrainingRun, WritesSamplesWhileItTrains) {
  const Outcome r = place_.run(
      command(5, "out",
              {"--sample-interval", "2", "--sample-prompt", "The", "A b", "--sample-tokens", "4"}));
  ASSERT_EQ(r.code, 0) << r.err;
  const auto samples = records("out", "sample");
  ASSERT_EQ(samples.size(), 4u);
  EXPECT_EQ(samples[3]["iteration"].as_integer(), 4);
  EXPECT_EQ(samples[3]["prompt"].as_string(), "A b");
  EXPECT_FALSE(samples[3]["text"].as_string().empty());
}

// On any layout the first rank writes the same samples: before sums of the first step are rounded
// differently, the weights are the same.
TEST_F(TrainingRun, WritesTheSameSamplesOnAnyLayout) {
  const Words sampling = {"--sample-interval",
                          "1",
                          "--sample-prompt",
                          "The",
                          "--sample-tokens",
                          "6",
                          "--num-layers",
                          "2",
                          "--num-attention-heads",
                          "4",
                          "--lr",
                          "1e-9"};
  const auto texts = [&](const std::string& folder, const Words& layout) {
    const Outcome r = place_.run(with(command(1, folder, sampling), layout));
    EXPECT_EQ(r.code, 0) << r.err;
    std::string all;
    for (const Json& sample : records(folder, "sample")) all += sample["text"].as_string() + "|";
    return all;
  };
  const std::string one = texts("one", {});
  EXPECT_GT(one.size(), 4u);
  int number = 0;
  for (const Words& layout :
       {Words{"--ranks", "2", "--tensor-model-parallel-size", "2", "--sequence-parallel"},
        Words{"--ranks", "2", "--pipeline-model-parallel-size", "2"},
        Words{"--ranks", "2", "--data-parallel-sharding-strategy", "optim_grads_params"},
        Words{"--ranks", "4", "--tensor-model-parallel-size", "2",
              "--data-parallel-sharding-strategy", "optim_grads_params"}})
    EXPECT_EQ(texts("many" + std::to_string(number++), layout), one);
}

// Every token ends a text here, so a sample has one token.
TEST_F(TrainingRun, SamplesEndAtTheModelsEndTokens) {
  const auto text = [&](const std::string& folder, const Words& more) {
    const Outcome r = place_.run(
        with(command(2, folder,
                     {"--sample-interval", "2", "--sample-prompt", "The", "--sample-tokens", "4"}),
             more));
    EXPECT_EQ(r.code, 0) << r.err;
    return records(folder, "sample").at(0)["text"].as_string();
  };
  const std::string whole = text("whole", {});
  std::filesystem::copy(vectors("indexed/preprocess/tokenizer_bpe2k"), place_ / "t");
  Json::Array all;
  for (int64_t id = 0; id < tokenizers::Tokenizer::load(place_ / "t").vocabulary_size(); ++id)
    all.emplace_back(id);
  write_file(place_ / "t/generation_config.json",
             Json(Json::Object{{"eos_token_id", std::move(all)}}).dump());
  const std::string one = text("one", {"--tokenizer-model", place_ / "t"});
  EXPECT_TRUE(whole.starts_with(one));
  EXPECT_LT(one.size(), whole.size());
}

TEST_F(TrainingRun, APromptThatDoesNotFitIsRefusedBeforeTheFirstStep) {
  std::string longer;
  for (int i = 0; i < 40; ++i) longer += "word ";
  const Outcome r = place_.run(command(
      5, "out", {"--sample-interval", "2", "--sample-prompt", longer, "--sample-tokens", "4"}));
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("--sample-prompt"), std::string::npos) << r.err;
  EXPECT_FALSE(std::filesystem::exists(place_ / "out"));
}

// After SIGHUP the run saves and ends, unless the signal is ignored, as under nohup.
TEST_F(TrainingRun, AHangUpEndsItAfterASaveUnlessItIsIgnored) {
  const Words handled = {"--exit-signal-handler", "--save-interval", "1000"};
  for (const bool ignored : {false, true}) {
    const std::string folder = ignored ? "ignored" : "ended";
    std::signal(SIGHUP, ignored ? SIG_IGN : SIG_DFL);
    Background child = place_.start(command(100, folder, handled));
    std::signal(SIGHUP, SIG_DFL);
    const std::string log = place_ / (folder + "/log.jsonl");
    while (!child.ended() && (!std::filesystem::exists(log) || records(folder, "step").size() < 5))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    child.kill(SIGHUP);
    const Outcome r = child.wait();
    EXPECT_EQ(r.code, ignored ? 0 : 4) << r.err;
    EXPECT_EQ(records(folder, "end").back()["reason"].as_string(), ignored ? "done" : "signal");
  }
}

// The run ends with exit code 4 and a checkpoint of its last step, and the same command continues
// with the same bits.
TEST_F(TrainingRun, ASignalEndsItAfterASave) {
  const Words handled = {"--exit-signal-handler", "--save-interval", "1000"};
  ASSERT_EQ(place_.run(command(400, "whole", handled)).code, 0);
  {
    Background child = place_.start(command(400, "parts", handled));
    const std::string log = place_ / "parts/log.jsonl";
    while (!child.ended() && (!std::filesystem::exists(log) || records("parts", "step").size() < 5))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    child.kill(SIGTERM);
    const Outcome r = child.wait();
    ASSERT_EQ(r.code, 4) << r.err;
    EXPECT_NE(r.err.find("SIGTERM"), std::string::npos) << r.err;
    EXPECT_EQ(records("parts", "end").back()["reason"].as_string(), "signal");
  }
  const Outcome rest = place_.run(command(400, "parts", handled));
  ASSERT_EQ(rest.code, 0) << rest.err;
  const auto whole = records("whole", "step"), parts = records("parts", "step");
  ASSERT_EQ(parts.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(parts[i]["loss"].dump(), whole[i]["loss"].dump());
    EXPECT_EQ(parts[i]["gradient_norm"].dump(), whole[i]["gradient_norm"].dump());
  }
}

TEST_F(TrainingRun, AnExitIntervalIsNoFailure) {
  const Outcome r = place_.run(command(9, "out", {"--exit-interval", "4"}));
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(read_file(place_ / "out/latest_checkpointed_iteration.txt"), "4");
  EXPECT_EQ(records("out", "end").back()["reason"].as_string(), "exit-interval");
}

}  // namespace
}  // namespace megatron::testing
