// Output and refusals of `megatron bench step`, `kernels`, `parallel` and `serve`.
#include <gtest/gtest.h>

#include <iterator>
#include <sstream>

#include "base/json.h"
#include "golden/cli/process.h"
#include "text.h"

namespace megatron::testing {
namespace {

std::vector<Words> rows(const std::string& text, const std::string& first) {
  std::vector<Words> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    Words row;
    for (std::string word; words >> word;) row.push_back(word);
    if (!row.empty() && row[0] == first) found.push_back(row);
  }
  return found;
}

// Uses one thread: on a busy machine, two would wait for each other in every small product.
Words tiny_step(bool bf16) {
  Words words = {"bench",
                 "step",
                 "--num-layers",
                 "2",
                 "--hidden-size",
                 "32",
                 "--num-attention-heads",
                 "4",
                 "--vocab-size",
                 "100",
                 "--seq-length",
                 "32",
                 "--micro-batch-size",
                 "2",
                 "--train-iters",
                 "2",
                 "--threads",
                 "1",
                 "--floor-seconds",
                 "0.0001",
                 "--plan-runs",
                 "1"};
  if (bf16) words.push_back("--bf16");
  return words;
}

// Every product of the step is in the floor's table, one row per shape, with the others below it.
TEST(BenchStep, PrintsTheFloorOfItsProductsAndBytes) {
  const Workplace place;
  const Outcome r = place.run(tiny_step(false));
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "own   plain  packed transposed    best")) << r.out;
  const std::vector<Words> products = rows(r.out, "gemm");
  // y = x w^T, dx = dy w and dw = dy^T x for qkv, output, up, down and the logits of two layers.
  int64_t calls = 0;
  for (const Words& row : products) {
    ASSERT_GE(row.size(), 12u) << r.out;
    calls += std::stoll(row[row.size() - 7]);
  }
  EXPECT_EQ(calls, 3 * (2 * 4 + 1)) << r.out;
  EXPECT_GE(products.size(), 12u) << r.out;
  for (const char* kernel : {"attention", "attention_backward", "add_layer_norm", "adam"})
    EXPECT_EQ(rows(r.out, kernel).size(), 1u) << kernel << r.out;
  EXPECT_TRUE(has(r.out, " GB/s\n")) << r.out;
  EXPECT_TRUE(has(r.out, "s; the step reaches ")) << r.out;
  EXPECT_TRUE(has(r.out, "of that speed (goal 85%)")) << r.out;
  EXPECT_TRUE(has(r.out, "the fastest call above reaches ")) << r.out;
}

TEST(BenchStep, PrintsJsonAlone) {
  const Workplace place;
  Words words = tiny_step(true);
  words.insert(words.end(), {"--json", "--plan-runs", "3"});
  const Outcome r = place.run(words);
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.err, "iteration      2/2")) << r.err;
  const Json step = Json::parse(r.out);
  EXPECT_EQ(step["type"].as_string(), "bf16");
  EXPECT_EQ(step["steps"].as_integer(), 1);
  EXPECT_GT(step["tokens_per_second"].as_number(), 0);
  const Json::Array& estimates = step["plan_runs"].as_array();
  ASSERT_EQ(estimates.size(), 3u);
  EXPECT_LE(estimates[0].as_number(), estimates[1].as_number());
  EXPECT_LE(estimates[1].as_number(), estimates[2].as_number());
  EXPECT_EQ(step["plan_seconds"].as_number(), estimates[1].as_number());
  EXPECT_EQ(step["plan_ratio"].as_number(),
            estimates[1].as_number() / step["step_seconds"].as_number());
  EXPECT_EQ(step["noisy"].as_bool(), step["gemm_peak_spread"].as_number() > 0.15);
  const Json& floor = step["floor"];
  int64_t calls = 0;
  double seconds = 0, fastest = 0;
  for (const Json& product : floor["products"].as_array()) {
    fastest = std::max(fastest, product["best_flops_per_second"].as_number());
    if (product["kernel"].as_string() == "gemm") calls += product["calls"].as_integer();
    seconds += static_cast<double>(product["calls"].as_integer()) * product["flops"].as_number() /
               product["best_flops_per_second"].as_number();
  }
  EXPECT_EQ(calls, 3 * (2 * 4 + 1)) << r.out;
  EXPECT_EQ(floor["fastest_flops_per_second"].as_number(), fastest);
  for (const Json& other : floor["others"].as_array())
    seconds += other["bytes"].as_number() / floor["copy_bandwidth"].as_number();
  EXPECT_NEAR(floor["seconds"].as_number(), seconds, 1e-9 * seconds);
  EXPECT_NEAR(floor["share"].as_number() * step["step_seconds"].as_number(), seconds,
              1e-9 * seconds);
}

TEST(BenchStep, PresetsAreModelsOfTheirNames) {
  const Workplace place;
  // A flag overrides the preset, wherever it stands on the command line.
  const Words less = {"--num-layers",
                      "1",
                      "--vocab-size",
                      "500",
                      "--seq-length",
                      "16",
                      "--train-iters",
                      "2",
                      "--no-floor",
                      "--plan-runs",
                      "0"};
  const std::pair<std::string, std::string> presets[] = {
      // 500 x 768 + 16 x 768 + 2 norms and the final norm + 12 x 768^2 + biases
      {"gpt2-124m", "7485696 parameters"},
      // 2 x 500 x 768 + norms + 768 x (1280 + 768 + 3 x 3072)
      {"llama-160m", "9421056 parameters"}};
  for (const auto& [preset, parameters] : presets) {
    Words words = {"bench", "step"};
    words.insert(words.end(), less.begin(), less.end());
    words.insert(words.end(), {"--preset", preset});
    const Outcome r = place.run(words);
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_TRUE(has(r.out, parameters)) << preset << r.out;
  }
}

// A skipped step makes no update, so its time is not the time of a step.
TEST(BenchStep, TimesOnlyStepsThatWereMade) {
  const Workplace place;
  const auto with = [](Words more) {
    Words words = tiny_step(false);
    words.insert(words.end(), {"--no-floor", "--plan-runs", "0"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  for (const Words& none : {Words{"--fp16"}, Words{"--exit-interval", "1"}}) {
    const Outcome r = place.run(with(none));
    EXPECT_EQ(r.code, 2) << r.out;
    EXPECT_TRUE(has(r.err, "nothing to time")) << r.err;
  }
  const Outcome r = place.run(with({"--fp16", "--loss-scale", "1024"}));
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "over 1 steps")) << r.out;
}

TEST(BenchKernels, JudgesEachCaseByTheLimitThatBinds) {
  const Workplace place;
  const Outcome text =
      place.run({"bench", "kernels", "--kernel", "rope", "--seconds", "0.001", "--threads", "2"});
  ASSERT_EQ(text.code, 0) << text.err;
  for (const char* column : {"kernel", "case", "ms", "rate", "% of", "GEMM peak", "copy", "GB/s"})
    EXPECT_TRUE(has(text.out, column)) << column << text.out;
  EXPECT_EQ(rows(text.out, "rope").size(), 2u) << text.out;

  const Outcome r = place.run({"bench", "kernels", "--kernel", "column_sum", "--bf16", "--seconds",
                               "0.001", "--threads", "1", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const Json found = Json::parse(r.out);
  EXPECT_EQ(found["threads"].as_integer(), 1);
  EXPECT_GT(found["gemm_peak"].as_number(), 0);
  EXPECT_GT(found["copy_bandwidth"].as_number(), 0);
  EXPECT_GT(found["read_bandwidth"].as_number(), 0);
  EXPECT_EQ(found["kernels"].as_array().size(), 2u);
  for (const Json& row : found["kernels"].as_array()) {
    EXPECT_EQ(row["kernel"].as_string(), "column_sum");
    const std::string limit = row["limit"].as_string();
    EXPECT_TRUE(limit == "read" || limit == "arithmetic") << limit;
    EXPECT_GT(row["bytes_per_second_in_cache"].as_number(), 0);
    EXPECT_GT(row["percent"].as_number(), 0);
    EXPECT_TRUE(has(row["case"].as_string(), "bf16"));
  }
}

// Every layout computes the same loss, and sends what the closed forms say.
TEST(BenchParallel, MeasuresEachLayoutBesideOneRank) {
  const Workplace place;
  const Words tiny = {"bench",
                      "parallel",
                      "--num-layers",
                      "2",
                      "--hidden-size",
                      "256",
                      "--num-attention-heads",
                      "4",
                      "--vocab-size",
                      "3000",
                      "--seq-length",
                      "64",
                      "--micro-batches",
                      "4",
                      "--rounds",
                      "1"};
  const Outcome r = place.run(tiny);
  ASSERT_EQ(r.code, 0) << r.err;
  double loss = 0;
  for (const std::string layout :
       {"one rank", "DP 2 ", "DP 2, ZeRO-1", "DP 2, ZeRO-3", "PP 2, 1F1B", "PP 2, ZB-H1", "TP 2 ",
        "TP 2 + SP", "CP 2, p2p", "CP 2, all_gather", "CP 2, a2a"}) {
    const size_t begin = r.out.find("\n" + layout);
    ASSERT_NE(begin, std::string::npos) << layout << r.out;
    std::istringstream line(r.out.substr(begin + 1, r.out.find('\n', begin + 1) - begin - 1));
    const Words words{std::istream_iterator<std::string>(line), {}};
    ASSERT_GE(words.size(), 10u) << r.out;
    const auto from_end = [&](size_t place_of) {
      return std::stod(words[words.size() - place_of]);
    };
    if (layout == "one rank") loss = from_end(1);
    EXPECT_NEAR(from_end(1), loss, 1e-5) << layout << r.out;
    EXPECT_EQ(from_end(3) > 0, layout != "one rank") << layout << r.out;
  }
  EXPECT_TRUE(has(r.out, "the one-rank steps vary by 0%")) << r.out;

  const Outcome help = place.run({"bench", "parallel", "--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* flag : {"--micro-batches", "--only", "--rounds", "--bf16"})
    EXPECT_TRUE(has(help.out, flag)) << flag << help.out;

  const Outcome delayed = place.run(with(tiny, {"--delay", "1", "--only", "CP 2, p2p"}));
  EXPECT_EQ(delayed.code, 0) << delayed.err;
  EXPECT_TRUE(has(delayed.out, "\nCP 2, p2p, serial ")) << delayed.out;
}

TEST(BenchServe, MeasuresAServerOfItsOwn) {
  const Workplace place;
  const Words tiny = words(
      "bench serve --num-layers 1 --hidden-size 32 --num-attention-heads 4 --vocab-size 100 "
      "--max-position-embeddings 64 --threads 1 --num-requests 5 --prompt-tokens 12 "
      "--max-tokens 4");
  const Outcome text = place.run(with(tiny, {"--request-rate", "500"}));
  ASSERT_EQ(text.code, 0) << text.err;
  for (const char* part : {"gpt2-124m at http://127.0.0.1:", "500 requests/s at random times",
                           "5 of 5 requests complete", "refused with status 429: 0; failed: 0",
                           "(0 of 60 tokens were in the server's cache)", "(20 tokens)"})
    EXPECT_TRUE(has(text.out, part)) << part << text.out;
  for (const char* row : {"time to first token ", "end-to-end latency "})
    EXPECT_TRUE(has(text.out, row)) << row << text.out;

  const Outcome r = place.run(with(tiny, {"--concurrency", "2", "--json"}));
  ASSERT_EQ(r.code, 0) << r.err;
  const Json found = Json::parse(r.out);
  EXPECT_EQ(found["complete"].as_integer(), 5);
  EXPECT_EQ(found["prompt_tokens"].as_integer(), 60);
  EXPECT_EQ(found["generated_tokens"].as_integer(), 20);
  EXPECT_GT(found["requests_per_second"].as_number(), 0);
  EXPECT_LE(found["time_to_first_token"]["p50"].as_number(), found["latency"]["p99"].as_number());
}

TEST(Bench, RefusesWhatItDoesNotKnow) {
  const Workplace place;
  const std::pair<Words, Words> refused[] = {
      {{"bench", "kernels", "--kernel", "gem"},
       {"--kernel", "'gem'", "gemm", "attention_backward"}},
      {{"bench", "kernels", "--kernel", "grad_scale", "--bf16"}, {"grad_scale", "--bf16"}},
      {{"bench", "kernels", "--seconds", "0"}, {"--seconds", "0"}},
      {{"bench", "step", "--preset", "gpt3"}, {"--preset", "gpt3", "gpt2-124m", "llama-160m"}},
      {{"bench", "step", "--floor-seconds", "-1"}, {"--floor-seconds", "-1"}},
      {{"bench", "step", "--plan-runs", "-1"}, {"--plan-runs", "-1", "[0, 100]"}},
      {{"bench", "parallel", "--micro-batches", "5"}, {"--micro-batches 5", "even"}},
      {{"bench", "parallel", "--rounds", "0"}, {"--rounds", "0"}},
      {{"bench", "parallel", "--delay", "-1"}, {"--delay", "-1", "100000"}},
      {{"bench", "parallel", "--only", "a2a", "--num-attention-heads", "3"},
       {"--num-attention-heads 3", "CP 2, a2a"}},
      {{"bench", "parallel", "--device", "cuda"}, {"--device", "cuda", "cpu"}},
      {{"bench", "step", "--untimed-steps", "6"},
       {"--train-iters is 6; at least 7 are needed: --untimed-steps 6"}},
      {{"bench", "step", "--sample-interval", "2", "--sample-prompt", "a"},
       {"does not generate samples", "--sample-interval"}},
      {{"bench", "parallel", "--only", "EP"}, {"--only", "EP", "DP 2, ZeRO-3", "TP 2 + SP"}},
      {{"bench", "parallel", "--ranks", "2"}, {"--ranks"}},
      {{"bench", "serve", "--url", "https://a"}, {"https://a", "http://HOST:PORT"}},
      {{"bench", "serve", "--url", "http://127.0.0.1:1", "--threads", "1"}, {"--threads", "--url"}},
      {{"bench", "serve", "--num-requests", "0"}, {"--num-requests", "0"}},
      {{"bench", "serve", "--request-rate", "0"}, {"--request-rate", "0"}},
      {{"bench", "serve", "--prompt-tokens", "2000"}, {"2000", "1024"}},
      {{"bench", "kernel"}, {"kernel", "kernels"}}};
  for (const auto& [words, parts] : refused) {
    const Outcome r = place.run(words);
    EXPECT_EQ(r.code, 2) << words[1] << r.out;
    for (const std::string& part : parts)
      EXPECT_TRUE(has(r.err + r.out, part)) << part << "\n" << r.err << r.out;
  }
}

}  // namespace
}  // namespace megatron::testing
