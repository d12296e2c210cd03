// `megatron eval --tasks`: its tables, files of per-example lines, killed runs and refused flags.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <random>
#include <thread>

#include "base/json.h"
#include "golden/cli/process.h"
#include "golden/selftest/support.h"
#include "text.h"

namespace megatron::testing {
namespace {

// An untrained model, made once for all tests.
class EvalTasks : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    place_ = new Workplace;
    const std::string text = vectors("indexed/preprocess/corpus.jsonl");
    for (const std::string& command :
         {"tokenizer train --output t --vocab-size 400 --special-tokens <|endoftext|> --input " +
              text,
          std::string("train --num-layers 1 --hidden-size 32 --num-attention-heads 2 --seq-length "
                      "640 --micro-batch-size 1 --train-iters 1 --lr 1e-5 --mock-data "
                      "--tokenizer-model t --save run")}) {
      const Outcome r = place_->run(words(command));
      ASSERT_EQ(r.code, 0) << r.err;
    }
  }
  static void TearDownTestSuite() {
    delete place_;
    place_ = nullptr;
  }

  static Words command(const Words& flags) {
    return with({"eval", "--load", "run", "--threads", "1"}, flags);
  }
  static Outcome run(const Words& flags) {
    const Outcome r = place_->run(command(flags));
    EXPECT_EQ(r.code, 0) << r.err;
    return r;
  }
  static void refused(const Words& flags, std::initializer_list<std::string_view> parts) {
    const auto before = place_->listing();
    const Outcome r = place_->run(command(flags));
    EXPECT_EQ(r.code, 2) << r.out << r.err;
    expect_contains(r.err, parts);
    EXPECT_EQ(place_->listing(), before);
  }
  static std::string sample(const std::string& name) {
    return std::string(MEGATRON_TEST_SOURCES) + "/golden/tasks/samples/" + name + ".jsonl";
  }
  static Words all() {
    return {"--tasks", sample("lambada"), sample("hellaswag"), sample("mmlu"), sample("gsm8k")};
  }

  static Workplace* place_;
};
Workplace* EvalTasks::place_ = nullptr;

TEST_F(EvalTasks, TableAndJson) {
  const std::string table = run(with(all(), {"--limit", "3", "--num-fewshot", "1"})).out;
  expect_contains(table, {"task       examples  metric", "lambada           3  perplexity",
                          "hellaswag         3  acc", "acc_norm", "acc_bytes",
                          "gsm8k             3  exact_match,strict-match",
                          "exact_match,flexible-extract", "all              12  acc"});
  const Json json =
      Json::parse(run(with(all(), {"--limit", "3", "--num-fewshot", "1", "--json"})).out);
  EXPECT_EQ(json["tasks"]["mmlu"]["examples"].as_integer(), 3);
  EXPECT_GE(json["tasks"]["mmlu"]["acc"].as_number(), 0);
  EXPECT_GE(json["tasks"]["lambada"]["perplexity"].as_number(), 1);
  EXPECT_GT(json["tasks"]["lambada"]["perplexity_stderr"].as_number(), 0);
  EXPECT_GE(json["all"]["acc_norm"].as_number(), 0);
  const Json one = Json::parse(run({"--tasks", sample("mmlu"), "--limit", "1", "--json"}).out);
  EXPECT_TRUE(one["tasks"]["mmlu"]["acc_stderr"].is_null());
}

// Partial contexts and several true choices, against continuations scored one by one.
TEST_F(EvalTasks, PublishedChoices) {
  const auto evaluate = [](const Words& tasks) {
    run(with({"--output", "answers.jsonl", "--tasks"}, tasks));
    std::istringstream text(read_file(*place_ / "answers.jsonl"));
    std::filesystem::remove(*place_ / "answers.jsonl");
    std::vector<Json> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
    return lines;
  };
  const auto continuation = [](const std::string& context, const std::string& text) {
    return Json(Json::Object{{"context", context}, {"continuation", text}}).dump() + "\n";
  };
  const auto wino = evaluate({sample("winogrande")}).at(1);
  const std::string begin = "The suitcase did not fit in the car because the ";
  write_file(*place_ / "one.jsonl", continuation(begin + "suitcase", " was too small.") +
                                        continuation(begin + "car", " was too small."));
  const auto one = evaluate({"one.jsonl"});
  for (size_t i = 0; i < 2; ++i)
    EXPECT_EQ(wino["loglikelihoods"].as_array()[i], one[i]["loglikelihood"]);
  EXPECT_EQ(wino["metrics"].as_object().size(), 1u);

  const std::string truthful = sample("truthfulqa");
  const auto two = evaluate({"truthfulqa_mc1=" + truthful, "truthfulqa_mc2=" + truthful});
  ASSERT_EQ(two.size(), 12u);
  EXPECT_EQ(two[6]["task"].as_string(), "truthfulqa_mc2");
  const Json::Array& first = two[0]["loglikelihoods"].as_array();
  const Json::Array& second = two[6]["loglikelihoods"].as_array();  // has one more in between
  EXPECT_EQ(first, (Json::Array{second[0], second[2], second[3]}));
  double all = 0, right = 0;
  for (size_t i = 0; i < 4; ++i) {
    all += std::exp(second[i].as_number());
    if (i < 2) right += std::exp(second[i].as_number());
  }
  EXPECT_NEAR(two[6]["metrics"]["acc"].as_number(), right / all, 1e-12);
  const Outcome shots = run({"--tasks", "truthfulqa_mc1=" + truthful, "--num-fewshot", "3"});
  expect_contains(shots.err, {"truthfulqa_mc1: --num-fewshot has no effect"});
}

// Neither the batch size nor the cache changes a bit.
TEST_F(EvalTasks, LinesOfExamples) {
  const Words flags = with(all(), {"--limit", "4", "--num-fewshot", "2", "--output"});
  run(with(flags, {"a.jsonl"}));
  const std::string lines = read_file(*place_ / "a.jsonl");
  EXPECT_EQ(count(lines, "\n"), 16u);
  std::istringstream in(lines);
  std::string line;
  std::getline(in, line);
  const Json first = Json::parse(line);
  EXPECT_EQ(first["task"].as_string(), "lambada");
  EXPECT_EQ(first["example"].as_integer(), 0);
  EXPECT_TRUE(has(first["place"].as_string(), "lambada.jsonl line 1"));
  EXPECT_LT(first["loglikelihood"].as_number(), 0);
  EXPECT_EQ(first["metrics"]["perplexity"].as_number(), first["loglikelihood"].as_number());
  for (int i = 0; i < 8; ++i) std::getline(in, line);
  const Json choice = Json::parse(line);
  EXPECT_EQ(choice["task"].as_string(), "mmlu");
  EXPECT_EQ(choice["subject"].as_string(), "everyday_knowledge");
  EXPECT_EQ(choice["loglikelihoods"].as_array().size(), 4u);
  run(with(flags, {"b.jsonl", "--inference-dynamic-batching-max-requests", "1",
                   "--no-inference-dynamic-batching-prefix-caching"}));
  EXPECT_EQ(read_file(*place_ / "b.jsonl"), lines);
}

TEST_F(EvalTasks, GoesOnAfterAKill) {
  const Words flags = with(all(), {"--num-fewshot", "1", "--output"});
  const std::string scores = run(with(flags, {"whole.jsonl"})).out;
  const std::string whole = read_file(*place_ / "whole.jsonl");
  std::mt19937 random(7);
  const std::string partial = *place_ / "killed.jsonl.partial";
  int kills = 0, resumed = 0;
  Outcome last;
  for (int attempt = 0; attempt < 200; ++attempt) {
    const auto lines = [&] {
      return std::filesystem::exists(partial) ? count(read_file(partial), "\n") : 0;
    };
    const size_t before = lines();
    Background child = place_->start(command(with(flags, {"killed.jsonl"})));
    while (kills < 10 && !child.ended() && lines() < before + 1 + random() % 3)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    if (kills < 10) child.kill(SIGKILL);
    last = child.wait();
    resumed += has(last.err, "examples are done");
    if (last.code == 0) break;
    ASSERT_EQ(last.code, 128 + SIGKILL) << last.err;
    ++kills;
  }
  EXPECT_EQ(last.code, 0);
  EXPECT_GE(resumed, 5);
  EXPECT_EQ(last.out, scores);
  EXPECT_EQ(read_file(*place_ / "killed.jsonl"), whole);
  EXPECT_FALSE(std::filesystem::exists(partial));
}

TEST_F(EvalTasks, OtherSettingsAreNoSecondHalf) {
  write_file(*place_ / "task.jsonl", "{\"text\": \"a b\"}\n{\"text\": \"c d\"}\n");
  const Words flags = {"--tasks", "task.jsonl", "--output", "half.jsonl"};
  // The partial file that a killed run leaves behind.
  write_file(*place_ / "half.jsonl.partial",
             R"({"settings of the lines below": {"--bf16": true}})"
             "\n"
             R"({"task": "task", "example": 1, "metrics": {"perplexity": -1.0, "acc": 0.0}})"
             "\n");
  refused(flags, {"half.jsonl.partial", "1 lines", "--bf16 was true and is now false"});
  std::filesystem::remove(*place_ / "half.jsonl.partial");
}

TEST_F(EvalTasks, RefusesWhatMakesNoSense) {
  write_file(*place_ / "bad.jsonl", "{\"text\": \"a b\"}\n{\"text\": 3}\n");
  write_file(*place_ / "long.jsonl",
             "{\"context\": \"a\", \"continuation\": \"" + std::string(4000, 'x') + "\"}\n");
  write_file(*place_ / "much.jsonl",
             "{\"task\": {\"max_gen_toks\": 640}}\n{\"context\": \"a\", "
             "\"target\": \"b\"}\n");
  refused({"--tasks", "nowhere.jsonl"}, {"nowhere.jsonl"});
  refused({"--tasks", "bad.jsonl"}, {"bad.jsonl line 2", "'text' is 3"});
  refused({"--tasks", "long.jsonl"}, {"long.jsonl line 1", "640 positions"});
  refused({"--tasks", "much.jsonl"}, {"much.jsonl line 2", "max_gen_toks", "640 positions"});
  refused({"--tasks", sample("mmlu"), sample("mmlu")}, {"both named mmlu"});
  refused({"--tasks", sample("mmlu"), "--num-fewshot", "6"}, {"mmlu.jsonl line 1", "only 6"});
  refused({"--tasks", sample("mmlu"), "--num-fewshot", "-1"}, {"--num-fewshot is -1"});
  refused({"--tasks", sample("mmlu"), "--limit", "0"}, {"--limit is 0"});
  refused({"--tasks", sample("mmlu"), "--output", "bad.jsonl"}, {"bad.jsonl", "output of eval"});
  refused({"--tasks", "bad.jsonl", "--stride", "3"}, {"--stride", "--tasks"});
  refused({"--tasks", "bad.jsonl", "--mock-data"}, {"--mock-data", "--tasks"});
  refused({"--input", "bad.jsonl", "--limit", "3"}, {"--limit", "--tasks"});
  refused({"--input", "bad.jsonl", "--inference-dynamic-batching-max-requests", "4"}, {"--tasks"});
}

}  // namespace
}  // namespace megatron::testing
