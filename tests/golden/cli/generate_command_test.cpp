// `megatron generate`: where prompts come from, when a text ends, and the written output.
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <thread>

#include "base/json.h"
#include "golden/cli/process.h"
#include "golden/selftest/support.h"
#include "text.h"
#include "tokenizers/tokenizer.h"

namespace megatron::testing {
namespace {

// An untrained model with 64 positions, made once for all tests.
class GenerateCommand : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    place_ = new Workplace;
    const std::string text = vectors("indexed/preprocess/corpus.jsonl");
    for (const Words& command : {Words{"tokenizer", "train", "--input", text, "--output", "t",
                                       "--vocab-size", "400", "--special-tokens", "<|endoftext|>"},
                                 Words{"tokenizer", "train", "--input", text, "--output", "bare",
                                       "--vocab-size", "300", "--special-tokens", "[PAD]"},
                                 Words{"train",
                                       "--num-layers",
                                       "2",
                                       "--hidden-size",
                                       "16",
                                       "--num-attention-heads",
                                       "2",
                                       "--seq-length",
                                       "64",
                                       "--micro-batch-size",
                                       "1",
                                       "--train-iters",
                                       "1",
                                       "--lr",
                                       "1e-5",
                                       "--mock-data",
                                       "--tokenizer-model",
                                       "t",
                                       "--save",
                                       "run"}}) {
      const Outcome r = place_->run(command);
      ASSERT_EQ(r.code, 0) << r.err;
    }
  }
  static void TearDownTestSuite() {
    delete place_;
    place_ = nullptr;
  }

  static Outcome run(const Words& flags, const std::string& in = "/dev/null") {
    const Outcome r = place_->run(with({"generate", "--load", "run", "--threads", "1"}, flags), in);
    EXPECT_EQ(r.code, 0) << r.err;
    return r;
  }
  static void refused(const Words& flags, const Words& parts, const std::string& in = "/dev/null") {
    const auto before = place_->listing();
    const Outcome r = place_->run(with({"generate", "--load", "run"}, flags), in);
    EXPECT_EQ(r.code, 2) << r.out << r.err;
    for (const std::string& part : parts)
      EXPECT_NE(r.err.find(part), std::string::npos) << part << " is not in\n" << r.err;
    EXPECT_EQ(place_->listing(), before);
  }
  static std::string file(const std::string& name, const std::string& text) {
    write_file(*place_ / name, text);
    return *place_ / name;
  }
  static std::vector<Json> lines(const std::string& name) {
    std::vector<Json> all;
    const std::string text = read_file(*place_ / name);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin);
      all.push_back(Json::parse(text.substr(begin, end - begin)));
      begin = end + 1;
    }
    return all;
  }

  static Workplace* place_;
};
Workplace* GenerateCommand::place_ = nullptr;

TEST_F(GenerateCommand, PromptsComeFromEverywhere) {
  const std::string once = run({"--prompt", "Hello there", "--max-tokens", "12"}).out;
  EXPECT_TRUE(once.starts_with("Hello there")) << once;
  EXPECT_GT(once.size(), 13u);
  const std::string text = file("prompt.txt", "Hello there\n");
  EXPECT_EQ(run({"--max-tokens", "12"}, text).out, once);
  EXPECT_EQ(run({"--prompt", "-", "--max-tokens", "12"}, text).out, once);
  EXPECT_EQ(run({"--prompt-file", "prompt.txt", "--max-tokens", "12"}).out, once);
  file("one.jsonl", "{\"prompt\": \"Hello there\", \"answer\": 3}\n\n");
  EXPECT_EQ(run({"--prompt-file", "one.jsonl", "--max-tokens", "12"}).out, once);

  const std::string two = run({"--prompt", "Hello there", "A man", "--max-tokens", "12"}).out;
  EXPECT_TRUE(two.starts_with("== prompt 1 of 2\n" + once)) << two;
  EXPECT_NE(two.find("\n== prompt 2 of 2\nA man"), std::string::npos) << two;
  file("two.txt", "Hello there\nA man\n");
  EXPECT_EQ(run({"--prompt-file", "two.txt", "--prompt-a-line", "--max-tokens", "12"}).out, two);
  file("two.jsonl", "{\"text\": \"Hello there\"}\n{\"prompt\": \"A man\"}");
  EXPECT_EQ(run({"--prompt-file", "two.jsonl", "--max-tokens", "12"}).out, two);
}

// An empty prompt starts from the end-of-document token.
TEST_F(GenerateCommand, BeginsWithNothing) {
  run({"--prompt", "", "--max-tokens", "5", "--output", "nothing.jsonl"});
  EXPECT_EQ(lines("nothing.jsonl")[0]["prompt_tokens"].as_array().size(), 1u);
}

TEST_F(GenerateCommand, ResultsDependOnNoBatchAndNoThreads) {
  const Words prompts = {"--max-tokens",
                         "12",
                         "--logprobs",
                         "2",
                         "--prompt",
                         "Hello there",
                         "A",
                         "The command reads a file and writes another",
                         "x",
                         "of the"};
  const std::string all = run(prompts).out;
  EXPECT_EQ(run(with({"--inference-dynamic-batching-max-requests", "1",
                      "--inference-dynamic-batching-max-tokens", "3"},
                     prompts))
                .out,
            all);
  EXPECT_EQ(
      run(with({"--inference-dynamic-batching-max-requests", "2", "--threads", "2"}, prompts)).out,
      all);
  EXPECT_NE(run(with({"--seed", "5"}, prompts)).out, all);
  const Words greedy = with({"--temperature", "0"}, prompts);
  EXPECT_EQ(run(with({"--seed", "5"}, greedy)).out, run(greedy).out);
}

TEST_F(GenerateCommand, FindsTheBestTextsByBeamSearch) {
  const Words flags = {"--prompt", "Hello there", "A man", "--max-tokens",
                       "12",       "--num-beams", "4"};
  const Words two = with(
      flags, {"--num-return-sequences", "2", "--length-penalty", "0", "--early-stopping", "never"});
  run(with(two, {"--output", "beams.jsonl", "--logprobs", "1"}));
  const std::vector<Json> written = lines("beams.jsonl");
  ASSERT_EQ(written.size(), 2u);
  std::string printed;
  for (const Json& line : written) {
    const Json::Array& beams = line["beams"].as_array();
    ASSERT_EQ(beams.size(), 2u);
    EXPECT_GE(beams[0]["score"].as_number(), beams[1]["score"].as_number());
    EXPECT_NE(beams[0]["tokens"], beams[1]["tokens"]);
    EXPECT_EQ(beams[0]["text"], line["text"]);
    EXPECT_EQ(beams[0]["tokens"], line["tokens"]);
    for (const Json& beam : beams) {
      double sum = 0;
      for (const Json& value : beam["logprobs"].as_array()) sum += value.as_number();
      EXPECT_NEAR(beam["score"].as_number(), sum, 1e-9) << "of length penalty 0";
      EXPECT_EQ(beam["top_logprobs"].as_array().size(), beam["tokens"].as_array().size());
    }
  }
  const std::string text = run(two).out;
  EXPECT_TRUE(text.starts_with("== prompt 1 of 2, text 1 of 2, score -")) << text;
  EXPECT_NE(text.find("\n== prompt 2 of 2, text 2 of 2, score -"), std::string::npos) << text;
  // A single text is streamed, and depends on no batch.
  const Words one = {"--prompt", "A man", "--max-tokens", "12", "--num-beams", "4"};
  run(with(one, {"--output", "best.jsonl"}));
  const std::string best = lines("best.jsonl")[0]["text"].as_string();
  EXPECT_TRUE(run(one).out.ends_with(best + "\n"));
  EXPECT_NE(run(flags).out.find(best), std::string::npos);
  EXPECT_EQ(run(with(one, {"--pipeline-model-parallel-size", "2"})).out, run(one).out);
}

TEST_F(GenerateCommand, NamesWhatBeamSearchExcludes) {
  const auto excludes = [](const Words& flags, const Words& parts) {
    refused(with({"--prompt", "x", "--num-beams", "3"}, flags), parts);
  };
  for (const auto& [flag, value] : {std::pair{"--temperature", "0.5"},
                                    {"--top-k", "4"},
                                    {"--top-p", "0.9"},
                                    {"--min-p", "0.1"},
                                    {"--repetition-penalty", "1.5"},
                                    {"--presence-penalty", "1"},
                                    {"--frequency-penalty", "1"},
                                    {"--logit-bias", "5:1"},
                                    {"--stop", "a"}})
    excludes({flag, value}, {"--num-beams and " + std::string(flag) + " exclude each other"});
  excludes({"--output", "x.jsonl", "--return-routed-experts"}, {"--return-routed-experts"});
  excludes({"--num-return-sequences", "4"}, {"--num-return-sequences is 4", "from 1 to 3"});
  excludes({"--max-tokens", "0"}, {"--max-tokens is 0"});
  excludes({"--length-penalty", "200"}, {"--length-penalty is 200", "[-100, 100]"});
  excludes({"--inference-dynamic-batching-max-requests", "2"},
           {"--num-beams is 3", "--inference-dynamic-batching-max-requests is only 2"});
  refused({"--prompt", "x", "--num-beams", "0"}, {"--num-beams is 0"});
  for (const auto& [flag, value] : {std::pair{"--num-return-sequences", "2"},
                                    {"--length-penalty", "0"},
                                    {"--early-stopping", "true"}})
    refused({"--prompt", "x", flag, value}, {flag, "give --num-beams"});
  refused({"--interactive", "--num-beams", "2", "--num-return-sequences", "2"},
          {"--num-return-sequences"});
}

// Runs the ranks as threads, and as processes of a launcher.
TEST_F(GenerateCommand, PipelineStagesGiveTheTextOfOneRank) {
  const Words flags = {"--max-tokens", "12", "--logprobs", "2", "--prompt", "Hello there", "A man"};
  const Words stages = with(flags, {"--pipeline-model-parallel-size", "2"});
  const std::string one = run(flags).out;
  EXPECT_EQ(run(stages).out, one);
  EXPECT_EQ(run(with(stages, {"--bf16"})).out, run(with(flags, {"--bf16"})).out);
  run(with(flags, {"--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2",
                   "--output", "four.jsonl"}));
  EXPECT_EQ(lines("four.jsonl").size(), 2u);
  refused({"--prompt", "x", "--pipeline-model-parallel-size", "3"},
          {"--pipeline-model-parallel-size is 3", "only 2 layers"});
  refused({"--prompt", "x", "--tensor-model-parallel-size", "0"},
          {"--tensor-model-parallel-size is 0", "[1, 1024]"});
  refused({"--prompt", "x", "--expert-model-parallel-size", "2"},
          {"--expert-model-parallel-size is 2; it must divide --tensor-model-parallel-size, 1"});
  refused(
      {"--prompt", "x", "--expert-model-parallel-size", "2", "--tensor-model-parallel-size", "2"},
      {"--expert-model-parallel-size is 2, but the model has no experts"});
  refused({"--prompt", "x", "--pipeline-model-parallel-size", "2", "--output", "small.jsonl",
           "--inference-dynamic-batching-buffer-size-gb", "1e-6"},
          {"--inference-dynamic-batching-buffer-size-gb is 0.000"});
  if (std::string_view(MEGATRON_MPI).empty()) return;
  const Words launch = {"launch", "-np", "2", "--no-prefix", "generate", "--load", "run"};
  const Outcome launched = place_->run(with(launch, stages));
  EXPECT_EQ(launched.code, 0) << launched.err;
  EXPECT_EQ(launched.out, one);
  const Outcome other = place_->run(with(launch, flags));
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find("2 processes"), std::string::npos) << other.err;
}

TEST_F(GenerateCommand, JsonLines) {
  run({"--prompt", "Hello there", "A man", "--max-tokens", "5", "--logprobs", "3", "--output",
       "out.jsonl", "--ignore-eos"});
  const auto all = lines("out.jsonl");
  ASSERT_EQ(all.size(), 2u);
  const auto tokenizer = tokenizers::Tokenizer::load(*place_ / "t");
  for (size_t i = 0; i < 2; ++i) {
    const Json& line = all[i];
    EXPECT_EQ(line["request"].as_integer(), static_cast<int64_t>(i));
    EXPECT_EQ(line["prompt"].as_string(), i == 0 ? "Hello there" : "A man");
    EXPECT_EQ(line["finish"].as_string(), "length");
    std::vector<int32_t> prompt, tokens;
    for (const Json& id : line["prompt_tokens"].as_array())
      prompt.push_back(static_cast<int32_t>(id.as_integer()));
    EXPECT_EQ(prompt, tokenizer.encode(line["prompt"].as_string(), true));
    for (const Json& id : line["tokens"].as_array())
      tokens.push_back(static_cast<int32_t>(id.as_integer()));
    ASSERT_EQ(tokens.size(), 5u);
    EXPECT_EQ(line["text"].as_string(), tokenizer.decode(tokens, true));
    const auto& of_prompt = line["prompt_logprobs"].as_array();
    ASSERT_EQ(of_prompt.size(), prompt.size());
    EXPECT_TRUE(of_prompt[0].is_null());
    for (size_t t = 1; t < of_prompt.size(); ++t) EXPECT_LT(of_prompt[t].as_number(), 0);
    for (size_t t = 0; t < 5; ++t) {
      const double p = line["logprobs"].as_array()[t].as_number();
      EXPECT_LT(p, 0);
      const auto& top = line["top_logprobs"].as_array()[t].as_array();
      ASSERT_EQ(top.size(), 3u);
      EXPECT_GE(top[0].as_array()[1].as_number(), top[1].as_array()[1].as_number());
      EXPECT_GE(top[0].as_array()[1].as_number(), p);
      for (const Json& other : top) {
        if (other.as_array()[0].as_integer() == tokens[t]) {
          EXPECT_EQ(other.as_array()[1].as_number(), p);
        }
      }
    }
  }
  run({"--prompt", "Hello there", "--max-tokens", "5", "--output", "plain.jsonl"});
  EXPECT_FALSE(lines("plain.jsonl")[0].contains("logprobs"));
}

TEST_F(GenerateCommand, ListsTheExpertsOfEachToken) {
  const Outcome trained = place_->run(
      words("train --num-layers 2 --hidden-size 16 --num-attention-heads 2 --seq-length 64 "
            "--micro-batch-size 1 --train-iters 1 --lr 1e-5 --mock-data --tokenizer-model t "
            "--num-experts 4 --moe-router-topk 2 --moe-layer-freq [0,1] --save experts"));
  ASSERT_EQ(trained.code, 0) << trained.err;
  run({"--load", "experts", "--prompt", "Hello there", "--max-tokens", "5", "--ignore-eos",
       "--return-routed-experts", "--output", "experts.jsonl"});
  const Json line = lines("experts.jsonl").at(0);
  const auto& tokens = line["routed_experts"].as_array();
  EXPECT_EQ(tokens.size(), line["prompt_tokens"].as_array().size() + 4);
  for (const Json& layers : tokens) {
    ASSERT_EQ(layers.as_array().size(), 1u);
    const auto& chosen = layers.as_array()[0].as_array();
    ASSERT_EQ(chosen.size(), 2u);
    EXPECT_NE(chosen[0], chosen[1]);
    for (const Json& expert : chosen)
      EXPECT_TRUE(expert.as_integer() >= 0 && expert.as_integer() < 4);
  }
  refused({"--prompt", "a", "--return-routed-experts"}, {"--return-routed-experts", "--output"});
  refused({"--prompt", "a", "--return-routed-experts", "--output", "none.jsonl"},
          {"--return-routed-experts", "no layer with experts"});
}

// Sends SIGKILL at random moments and repeats the command: no line is lost or generated twice.
TEST_F(GenerateCommand, GoesOnAfterAKill) {
  std::string prompts;
  for (int i = 0; i < 400; ++i) prompts += "{\"prompt\": \"Hello " + std::to_string(i) + "\"}\n";
  file("many.jsonl", prompts);
  const Words flags = {"--prompt-file", "many.jsonl", "--max-tokens", "20",
                       "--logprobs",    "1",          "--ignore-eos", "--output"};
  run(with(flags, {"whole.jsonl"}));
  const std::string partial = *place_ / "killed.jsonl.partial";
  const auto lines_of = [](const std::string& text) { return count(text, "\n"); };
  std::mt19937 random(5);
  int kills = 0, resumed = 0;
  Outcome last;
  std::string before;
  for (int attempt = 0; attempt < 200; ++attempt) {
    Background child = place_->start(
        with({"generate", "--load", "run", "--threads", "1"}, with(flags, {"killed.jsonl"})));
    const size_t enough = lines_of(before) + 1 + random() % 20;
    const auto text = [&] {
      return std::filesystem::exists(partial) ? read_file(partial) : std::string();
    };
    while (kills < 10 && !child.ended() && lines_of(text()) < enough)
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    if (kills < 10) child.kill(SIGKILL);
    last = child.wait();
    resumed += has(last.err, "prompts are done");
    if (last.code == 0) break;
    ASSERT_EQ(last.code, 128 + SIGKILL) << last.err;
    ++kills;
    const std::string after = text();
    const std::string kept = before.substr(0, before.rfind('\n') + 1);
    EXPECT_TRUE(after.starts_with(kept)) << "what was done is kept as it is";
    before = after;
  }
  EXPECT_EQ(last.code, 0);
  EXPECT_EQ(kills, 10);
  EXPECT_GE(resumed, 5);
  EXPECT_EQ(read_file(*place_ / "killed.jsonl"), read_file(*place_ / "whole.jsonl"));
  EXPECT_FALSE(std::filesystem::exists(partial));
}

TEST_F(GenerateCommand, AnotherRunIsNoSecondHalf) {
  std::string prompts;
  for (int i = 0; i < 100; ++i) prompts += "{\"prompt\": \"A man\"}\n";
  file("men.jsonl", prompts);
  const Words flags = {"--prompt-file", "men.jsonl", "--max-tokens", "5", "--output"};
  run(with(flags, {"half.jsonl"}));
  const std::string whole = read_file(*place_ / "half.jsonl");
  // The file that a run leaves if it is killed after its first line.
  const std::string partial = *place_ / "half.jsonl.partial";
  Background child = place_->start(with({"generate", "--load", "run", "--threads", "1"},
                                        with(flags, {"half.jsonl", "--max-tokens", "50"})));
  while (!child.ended() && !std::filesystem::exists(partial)) std::this_thread::yield();
  while (!child.ended() && read_file(partial).empty()) std::this_thread::yield();
  child.kill(SIGSTOP);
  const std::string settings = read_file(partial);
  child.kill(SIGKILL);
  child.wait();
  const std::string header = settings.substr(0, settings.find('\n') + 1);
  ASSERT_TRUE(has(header, "--max-tokens")) << settings;
  file("half.jsonl.partial", header + whole.substr(0, whole.find('\n') + 1));
  refused(with(flags, {"half.jsonl"}),
          {"half.jsonl.partial", "1 lines", "--max-tokens was \"50\" and is now \"5\""});
  refused(with(flags, {"half.jsonl", "--max-tokens", "50", "--stop", "x"}),
          {"--stop was []", "is now [\"x\"]"});
  file("men.jsonl", prompts + "{\"prompt\": \"A woman\"}\n");
  refused(with(flags, {"half.jsonl", "--max-tokens", "50"}), {"the prompts was"});
  EXPECT_EQ(read_file(*place_ / "half.jsonl"), whole);
  std::filesystem::remove(partial);
}

TEST_F(GenerateCommand, StopsBeforeAText) {
  const Words flags = {"--prompt", "Hello there", "--max-tokens", "30", "--ignore-eos"};
  run(with(flags, {"--output", "whole.jsonl"}));
  const std::string whole = lines("whole.jsonl")[0]["text"].as_string();
  // Eight bytes from the middle, starting at a character's first byte: they span several tokens.
  size_t begin = whole.size() / 2;
  const auto inside = [&](size_t at) { return (whole[at] & 0xC0) == 0x80; };
  while (inside(begin)) ++begin;
  size_t end = begin + 8;
  while (end < whole.size() && inside(end)) ++end;
  const std::string stop = whole.substr(begin, end - begin);
  const std::string expected = whole.substr(0, whole.find(stop));
  const Words stops = {"--stop", "no such text", "--stop=" + stop};
  run(with(flags, with(stops, {"--output", "cut.jsonl"})));
  const Json cut = lines("cut.jsonl")[0];
  EXPECT_EQ(cut["text"].as_string(), expected);
  EXPECT_EQ(cut["finish"].as_string(), "stop");
  EXPECT_LT(cut["tokens"].as_array().size(), 30u);
  EXPECT_EQ(run(with(flags, stops)).out, "Hello there" + expected + "\n");
}

// A bias of 100 decides the sampled token; token 50 ends the text once the minimum is reached.
TEST_F(GenerateCommand, BiasesAndTokensThatEndAText) {
  const auto tokens = [&](const Words& flags) {
    run(with({"--prompt", "Hello there", "--max-tokens", "6", "--output", "biased.jsonl"}, flags));
    const Json line = lines("biased.jsonl")[0];
    std::vector<int64_t> ids;
    for (const Json& id : line["tokens"].as_array()) ids.push_back(id.as_integer());
    EXPECT_EQ(line["finish"].as_string(), ids.back() == 50 ? "end_token" : "length");
    return ids;
  };
  using Ids = std::vector<int64_t>;
  EXPECT_EQ(tokens({"--logit-bias", "40:100"}), Ids(6, 40));
  const Words ends = {"--logit-bias", "40:70", "50:100", "--stop-token-ids", "51", "50"};
  EXPECT_EQ(tokens(ends), Ids{50});
  EXPECT_EQ(tokens(with(ends, {"--min-tokens", "3"})), (Ids{40, 40, 40, 50}));
  const Words close = {"--temperature", "0", "--logit-bias", "40:91.5", "41:90"};
  EXPECT_EQ(tokens(with(close, {"--presence-penalty", "2"})), (Ids{40, 41, 40, 40, 40, 40}));
  EXPECT_EQ(tokens(with(close, {"--frequency-penalty", "1"})), (Ids{40, 40, 41, 40, 41, 40}));
}

TEST_F(GenerateCommand, EndsAtTheTokensOfTheGenerationConfig) {
  const Words flags = {"--prompt",     "Hello there", "--max-tokens", "6",
                       "--logit-bias", "50:100",      "--output",     "ends.jsonl"};
  const std::string config =
      file("run/iter_0000001/generation_config.json", R"({"eos_token_id": [3, 50]})");
  run(flags);
  EXPECT_EQ(lines("ends.jsonl")[0]["tokens"].as_array().size(), 1u);
  EXPECT_EQ(lines("ends.jsonl")[0]["finish"].as_string(), "end_token");
  run(with(flags, {"--ignore-eos"}));
  EXPECT_EQ(lines("ends.jsonl")[0]["tokens"].as_array().size(), 6u);
  std::filesystem::remove(config);
}

TEST_F(GenerateCommand, EndsAtThePositionsAndKeepsTheEndOfALongPrompt) {
  std::string many;
  for (int i = 0; i < 100; ++i) many += "x ";
  const Outcome r =
      run({"--prompt", many, "--max-tokens", "200", "--ignore-eos", "--output", "long.jsonl"});
  EXPECT_NE(r.err.find("64 positions"), std::string::npos) << r.err;
  const Json line = lines("long.jsonl")[0];
  EXPECT_EQ(line["prompt_tokens"].as_array().size(), 32u);
  EXPECT_EQ(line["tokens"].as_array().size(), 33u);
  EXPECT_EQ(line["finish"].as_string(), "positions");
}

// Rotary positions extend as far as a text needs; learned positions end with their table.
TEST_F(GenerateCommand, TheContextLengthIsAFlag) {
  const Outcome made = place_->run({"train",
                                    "--num-layers",
                                    "1",
                                    "--hidden-size",
                                    "16",
                                    "--num-attention-heads",
                                    "2",
                                    "--position-embedding-type",
                                    "rope",
                                    "--seq-length",
                                    "64",
                                    "--micro-batch-size",
                                    "1",
                                    "--train-iters",
                                    "1",
                                    "--lr",
                                    "1e-5",
                                    "--mock-data",
                                    "--tokenizer-model",
                                    "t",
                                    "--save",
                                    "rotary"});
  ASSERT_EQ(made.code, 0) << made.err;
  int texts = 0;
  const auto length = [&](const Words& flags, bool says) {
    const std::string output = "context" + std::to_string(texts++) + ".jsonl";
    const Outcome r =
        place_->run(with({"generate", "--load", "rotary", "--threads", "1", "--prompt",
                          "Hello there", "--max-tokens", "200", "--ignore-eos", "--output", output},
                         flags));
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(r.err.find("above the model's context length of 64") != std::string::npos, says)
        << r.err;
    const Json line = lines(output).at(0);
    return line["prompt_tokens"].as_array().size() + line["tokens"].as_array().size();
  };
  EXPECT_EQ(length({}, false), 65U);
  EXPECT_EQ(length({"--inference-max-seq-length", "100"}, true), 101U);
  EXPECT_EQ(length({"--inference-max-seq-length", "20"}, false), 21U);
  refused({"--prompt", "a", "--inference-max-seq-length", "65"},
          {"--inference-max-seq-length is 65", "64 positions"});
}

TEST_F(GenerateCommand, SaysHowFastItWas) {
  const Outcome r = run({"--prompt", "Hello there", "--max-tokens", "5", "--ignore-eos"});
  EXPECT_NE(r.err.find(" prompt tokens, "), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("| 5 generated tokens, "), std::string::npos) << r.err;
  EXPECT_NE(r.err.find(" tokens/s\n"), std::string::npos) << r.err;
}

TEST_F(GenerateCommand, Converses) {
  const auto conversation = [&](const std::string& text) {
    return run({"--interactive", "--max-tokens", "8", "--ignore-eos"}, file("lines", text)).out;
  };
  const std::string once =
      run({"--prompt", "Hello there", "--max-tokens", "8", "--ignore-eos"}).out;
  const std::string continued = once.substr(std::string("Hello there").size());
  EXPECT_EQ(conversation("Hello there\n/quit\nno more\n"), "> " + continued + "> ");
  EXPECT_EQ(conversation("Hello there\n"), "> " + continued + "> \n");
  // The second line continues the conversation, unless /reset clears it.
  EXPECT_EQ(conversation("Hello there\n/reset\nHello there\n"),
            "> " + continued + "> > " + continued + "> \n");
  const std::string two = conversation("Hello there\nHello there\n");
  EXPECT_TRUE(two.starts_with("> " + continued + "> "));
  EXPECT_NE(two, "> " + continued + "> " + continued + "> \n");
}

TEST_F(GenerateCommand, RefusesWhatMakesNoSense) {
  refused({}, {"standard input", "--prompt"});
  refused({"--prompt", "-"}, {"standard input"});
  refused({"--prompt", "-", "-"}, {"twice"}, file("in", "x"));
  refused({"--prompt", "", "--tokenizer-model", "bare"}, {"empty", "give some text"});
  refused({"--prompt", "x", "--prompt-file", "y"}, {"--prompt-file"});
  refused({"--prompt-file", "nowhere.txt"}, {"nowhere.txt"});
  file("bad.jsonl", "{\"prompt\": \"x\"}\n{\"promt\": 3}\n");
  refused({"--prompt-file", "bad.jsonl"}, {"bad.jsonl line 2", "\"prompt\""});
  file("worse.jsonl", "{\"prompt\": \"x\"\n");
  refused({"--prompt-file", "worse.jsonl"}, {"worse.jsonl line 1"});
  file("empty.jsonl", "\n");
  refused({"--prompt-file", "empty.jsonl"}, {"empty.jsonl", "no prompt"});
  refused({"--prompt-file", "bad.jsonl", "--prompt-a-line"}, {"--prompt-a-line"});
  refused({"--prompt", "x", "--prompt-a-line"}, {"--prompt-a-line"});
  refused({"--prompt", "x", "--logprobs", "401"}, {"--logprobs is 401", "400"});
  refused({"--prompt", "x", "--logprobs", "-1"}, {"--logprobs is -1"});
  refused({"--prompt", "x", "--max-tokens", "-1"}, {"--max-tokens is -1"});
  refused({"--prompt", "x", "--inference-dynamic-batching-max-requests", "0"},
          {"--inference-dynamic-batching-max-requests is 0"});
  for (const char* flag : {"max-requests", "max-tokens", "block-size"})
    refused({"--prompt", "x", std::string("--inference-dynamic-batching-") + flag,
             "9223372036854775807"},
            {std::string(flag) + " is 9223372036854775807; it must "});
  refused({"--prompt", "x", "--inference-dynamic-batching-max-tokens", "0"},
          {"--inference-dynamic-batching-max-tokens is 0"});
  refused({"--prompt", "x", "--inference-dynamic-batching-num-cuda-graphs", "-1"},
          {"--inference-dynamic-batching-num-cuda-graphs is -1"});
  refused({"--prompt", "x", "--top-p", "1.5"}, {"--top-p is 1.5"});
  refused({"--prompt", "x", "--min-p", "-1"}, {"--min-p is -1"});
  refused({"--prompt", "x", "--repetition-penalty", "0"}, {"--repetition-penalty is 0"});
  refused({"--prompt", "x", "--presence-penalty", "2.5"}, {"--presence-penalty is 2.5", "[-2, 2]"});
  refused({"--prompt", "x", "--frequency-penalty=-3"}, {"--frequency-penalty is -3", "[-2, 2]"});
  for (const char* bad : {"5", "5:", ":5", "5:x", "x:5", "-5:1", "5:1:2", "5000000000:1"})
    refused({"--prompt", "x", std::string("--logit-bias=") + bad},
            {"--logit-bias", bad, "262:-100"});
  refused({"--prompt", "x", "--logit-bias", "5:1", "5:2"}, {"--logit-bias", "token 5 twice"});
  refused({"--prompt", "x", "--logit-bias", "5:101"}, {"--logit-bias of token 5 is 101", "100]"});
  refused({"--prompt", "x", "--logit-bias", "400:1"}, {"--logit-bias", "token 400", "400 tokens"});
  refused({"--prompt", "x", "--min-tokens", "-1"}, {"--min-tokens is -1"});
  refused({"--prompt", "x", "--min-tokens", "9", "--max-tokens", "8"},
          {"--min-tokens is 9", "--max-tokens is only 8"});
  refused({"--prompt", "x", "--stop-token-ids", "5", "x"}, {"--stop-token-ids is 'x'"});
  refused({"--prompt", "x", "--stop-token-ids", "400"}, {"--stop-token-ids", "token 400"});
  refused({"--prompt", "x", "--stop", ""}, {"--stop"});
  refused({"--prompt", "x", "--output", "run/iter_0000001/config.json/x"}, {"config.json"});
  refused({"--prompt", "x", "--interactive"}, {"--interactive"});
  refused({"--interactive", "--output", "x"}, {"--output"});
}

TEST_F(GenerateCommand, TakesTheTokenizerOfFlags) {
  const Words common = {"--prompt", "the cat", "--max-tokens", "4", "--temperature", "0"};
  const std::string own = run(common).out;
  EXPECT_EQ(
      run(with(common, {"--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", "t"})).out,
      own);
  const Words ids = {"--tokenizer-type", "NullTokenizer", "--prompt", "5 6 7", "--max-tokens", "2"};
  EXPECT_TRUE(run(ids).out.starts_with("5 6 7"));
  EXPECT_NE(run(with(common, {"--tokenizer-model", "bare"}))
                .err.find("the tokenizer has 300 tokens, but the model has 400: the ids from 300 "
                          "on have no text"),
            std::string::npos);
  refused({"--prompt", "x", "--tokenizer-type", "NullTokenizer", "--vocab-file", "v"},
          {"--vocab-file applies to", "BertWordPieceLowerCase", "NullTokenizer"});
}

}  // namespace
}  // namespace megatron::testing
