// From raw text to generated text with the program's commands, and their help.
#include <gtest/gtest.h>

#include "base/json.h"
#include "golden/cli/process.h"
#include "golden/selftest/support.h"
#include "text.h"

namespace megatron::testing {
namespace {

TEST(Help, EveryCommandListsItsFlags) {
  const Workplace place;
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> commands = {
      {{},
       {"train", "eval", "generate", "tokenizer", "preprocess", "verify", "bench", "selftest",
        "inspect"}},
      {{"train"}, {"--num-layers", "--lr-decay-style", "--ranks", "--preset", "--help all"}},
      {{"eval"}, {"--load", "--eval-set", "--split"}},
      {{"generate"}, {"--prompt", "--temperature", "--top-k"}},
      {{"tokenizer"}, {"train", "encode", "decode"}},
      {{"tokenizer", "train"}, {"--input", "--vocab-size", "--overwrite"}},
      {{"tokenizer", "encode"}, {"--tokenizer-model", "--show-tokens"}},
      {{"tokenizer", "decode"}, {"--tokenizer-model", "--skip-special-tokens"}},
      {{"preprocess"}, {"--json-keys", "--append-eod", "--overwrite"}},
      {{"verify"}, {"--rewrite", "--device"}},
      {{"bench"}, {"step", "gemm"}},
      {{"bench", "step"}, {"--bf16", "--micro-batch-size"}},
      {{"bench", "gemm"}, {"--bf16", "--seconds"}},
      {{"selftest"}, {"--fault"}},
      {{"inspect"}, {"path"}}};
  for (auto [command, parts] : commands) {
    command.push_back("--help");
    const Outcome r = place.run(command);
    EXPECT_EQ(r.code, 0) << command[0];
    EXPECT_EQ(r.err, "");
    for (const std::string& part : parts)
      EXPECT_TRUE(has(r.out, part)) << command[0] << ": " << part << "\n" << r.out;
  }
  const std::string all = place.run({"train", "--help", "all"}).out;
  for (const char* part : {"--no-calculate-per-token-loss", "--finetune", "1234"})
    EXPECT_TRUE(has(all, part)) << part;
  EXPECT_EQ(place.run({}).code, 2);
  EXPECT_TRUE(has(place.run({"--version"}).out, "megatron "));
}

TEST(Pipeline, FromTextToText) {
  const Workplace place;
  const std::string corpus = vectors("indexed/preprocess/corpus.jsonl");
  const auto ok = [&](const std::vector<std::string>& arguments) {
    const Outcome r = place.run(arguments);
    EXPECT_EQ(r.code, 0) << arguments[0] << "\n" << r.out << r.err;
    return r.out;
  };
  ok({"tokenizer", "train", "--input", corpus, "--output", "tokenizer", "--vocab-size", "512"});
  const std::string ids =
      ok({"tokenizer", "encode", "--tokenizer-model", "tokenizer", "Hello there,", "world"});
  EXPECT_EQ(
      ok({"tokenizer", "decode", "--tokenizer-model", "tokenizer", ids.substr(0, ids.size() - 1)}),
      "Hello there, world\n");
  ok({"preprocess", "--input", corpus, "--output-prefix", "data", "--tokenizer-model", "tokenizer",
      "--append-eod"});
  const std::vector<std::string> train = {"train",
                                          "--num-layers",
                                          "2",
                                          "--hidden-size",
                                          "32",
                                          "--num-attention-heads",
                                          "4",
                                          "--swiglu",
                                          "--normalization",
                                          "RMSNorm",
                                          "--position-embedding-type",
                                          "rope",
                                          "--disable-bias-linear",
                                          "--hidden-dropout",
                                          "0",
                                          "--attention-dropout",
                                          "0",
                                          "--seq-length",
                                          "32",
                                          "--micro-batch-size",
                                          "4",
                                          "--global-batch-size",
                                          "16",
                                          "--train-iters",
                                          "40",
                                          "--lr",
                                          "5e-3",
                                          "--lr-decay-style",
                                          "cosine",
                                          "--lr-warmup-iters",
                                          "4",
                                          "--data-path",
                                          "data_text_document",
                                          "--tokenizer-model",
                                          "tokenizer",
                                          "--split",
                                          "90,10",
                                          "--eval-interval",
                                          "20",
                                          "--eval-iters",
                                          "2",
                                          "--log-interval",
                                          "10",
                                          "--save",
                                          "run",
                                          "--save-interval",
                                          "20",
                                          "--ranks",
                                          "2",
                                          "--threads",
                                          "1"};
  const std::string log = ok(train);
  for (const char* part :
       {"iteration      1/40", "iteration     40/40", "validation loss at iteration 40",
        " tokens/s (", " in all)", " left | lr "}) {
    EXPECT_TRUE(has(log, part)) << part << "\n" << log;
  }
  for (const char* file :
       {"run/latest_checkpointed_iteration.txt", "run/iter_0000020/model.safetensors",
        "run/iter_0000040/config.json", "run/iter_0000040/model.safetensors",
        "run/iter_0000040/tokenizer.json"}) {
    EXPECT_TRUE(std::filesystem::exists(place / file)) << file;
  }
  EXPECT_EQ(read_file(place / "run/latest_checkpointed_iteration.txt"), "40");

  const std::vector<std::string> eval = {
      "eval", "--load", "run", "--data-path", "data_text_document", "--split", "90,10"};
  const std::string evaluated = ok(eval);
  const size_t at = evaluated.find("loss ");
  ASSERT_NE(at, std::string::npos) << evaluated;
  EXPECT_LT(std::stod(evaluated.substr(at + 5)), 5.6);  // log(512) = 6.24 before training
  EXPECT_TRUE(has(evaluated, "unigram entropy")) << evaluated;
  std::vector<std::string> two = eval;
  two.insert(two.end(), {"--ranks", "2", "--threads", "1", "--micro-batch-size", "3"});
  EXPECT_EQ(ok(two), evaluated);

  const std::vector<std::string> generate = {
      "generate",     "--load", "run/iter_0000040", "--prompt", "Hello",
      "--max-tokens", "8",      "--seed",           "3",        "--ignore-eos"};
  const std::string text = ok(generate);
  EXPECT_TRUE(text.starts_with("Hello")) << text;
  EXPECT_EQ(ok(generate), text);

  EXPECT_TRUE(has(ok({"inspect", "run"}), "model.embed_tokens.weight"));
  EXPECT_TRUE(has(ok({"inspect", "data_text_document"}), "200 documents"));
  EXPECT_TRUE(has(ok({"inspect", "tokenizer"}), "512 tokens"));
  EXPECT_TRUE(has(ok({"inspect", "run/iter_0000040/model.safetensors"}), "f32"));

  // Starts from the trained weights: the first loss is near the last one of the first run.
  const std::string more = ok({"train",
                               "--model",
                               "run",
                               "--finetune",
                               "--seq-length",
                               "32",
                               "--micro-batch-size",
                               "4",
                               "--train-iters",
                               "2",
                               "--lr",
                               "1e-4",
                               "--data-path",
                               "data_text_document",
                               "--split",
                               "90,10",
                               "--tokenizer-model",
                               "tokenizer",
                               "--log-interval",
                               "1"});
  const size_t loss = more.find(" | loss ");
  ASSERT_NE(loss, std::string::npos) << more;
  EXPECT_LT(std::stod(more.substr(loss + 8)), 5.6);
}

// Returns everything after "lm loss: " and "grad norm: ", in order.
std::vector<std::string> losses(const std::string& log) {
  std::vector<std::string> found;
  for (const std::string label : {"lm loss: ", "grad norm: "}) {
    for (size_t at = log.find(label); at != std::string::npos; at = log.find(label, at + 1)) {
      found.push_back(log.substr(at, log.find(' ', at + label.size()) - at));
    }
  }
  return found;
}

// `bench step` makes the same steps as `train` for each type: equal losses with equal settings.
TEST(Bench, StepHasTheLossesOfTrain) {
  const Workplace place;
  for (const bool bf16 : {false, true}) {
    std::vector<std::string> bench = {"bench",
                                      "step",
                                      "--num-layers",
                                      "1",
                                      "--hidden-size",
                                      "32",
                                      "--num-attention-heads",
                                      "2",
                                      "--vocab-size",
                                      "100",
                                      "--seq-length",
                                      "32",
                                      "--micro-batch-size",
                                      "2",
                                      "--train-iters",
                                      "3",
                                      "--threads",
                                      "1"};
    bench.insert(bench.end(), {"--log-format", "megatron"});
    if (bf16) bench.push_back("--bf16");
    std::vector<std::string> train = {"train"};
    train.insert(train.end(), bench.begin() + 2, bench.end());
    train.insert(train.end(),
                 {"--mock-data", "--lr", "6e-4", "--lr-decay-style", "constant", "--log-interval",
                  "1", "--hidden-dropout", "0", "--attention-dropout", "0"});
    bench.insert(bench.end(), {"--no-floor", "--plan-runs", "1"});
    const Outcome measured = place.run(bench), trained = place.run(train);
    ASSERT_EQ(measured.code, 0) << measured.err;
    ASSERT_EQ(trained.code, 0) << trained.err;
    EXPECT_EQ(losses(measured.out).size(), 6u) << measured.out;
    EXPECT_EQ(losses(measured.out), losses(trained.out));
    const std::string type = bf16 ? "bf16" : "f32";
    for (const std::string& part :
         {std::string(" tokens/s, "), std::string(" TFLOP/s, "),
          "% of " + type + " GEMM peak (peak ", std::string(", spread ")}) {
      EXPECT_TRUE(has(measured.out, part)) << part << measured.out;
    }
  }
}

}  // namespace
}  // namespace megatron::testing
