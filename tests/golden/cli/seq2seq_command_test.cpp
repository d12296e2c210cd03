// `megatron seq2seq` trains encoder-decoders on pairs of texts.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "golden/cli/command_test.h"
#include "golden/selftest/support.h"

namespace megatron::testing {
namespace {

constexpr const char* kSmall = R"({"model_type": "t5", "vocab_size": 384, "d_model": 32, "d_kv": 8,
  "d_ff": 64, "num_layers": 2, "num_heads": 4, "feed_forward_proj": "relu",
  "tie_word_embeddings": true, "dropout_rate": 0})";

class PairCommand : public CommandTest {
 protected:
  PairCommand() {
    write_file(place_ / "t5.json", kSmall);
    std::string lines;
    const Words nouns = {"time", "year", "people", "way", "day", "man", "thing", "woman"};
    for (size_t i = 0; i < 64; ++i)
      lines += R"({"input": "the )" + nouns[i % 8] + " of the " + nouns[i / 8] +
               R"(", "target": ")" + nouns[i % 8] + "\"}\n";
    write_file(place_ / "pairs.jsonl", lines);
  }

  static Words tokenizer() { return {"--tokenizer-model", vectors("bert_dataset/data/wordpiece")}; }
  static Words command(const std::string& more, const std::string& file = "pairs.jsonl") {
    return with(with({"seq2seq", "--model-config", "t5.json", "--data-path", file}, tokenizer()),
                words("--seq-length 32 --decoder-seq-length 16 "
                      "--micro-batch-size 2 --global-batch-size 4 --log-interval 1 "
                      "--lr-decay-style constant --lr 1e-2 " +
                      more));
  }
};

TEST_F(PairCommand, LearnsTargetsAndGoesOnInAnotherLayout) {
  const Outcome r =
      succeed(command("--epochs 5 --save whole --split 90,10,0 --eval-interval 40 "
                      "--eval-iters 1"));
  EXPECT_NE(r.err.find("pairs of texts"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("rows of 32 + 16 tokens"), std::string::npos) << r.err;
  const std::vector<double> expected = losses("whole");
  ASSERT_GT(expected.size(), 40u);
  EXPECT_LT(expected.back(), 0.5 * expected[0]);

  const std::string steps = "--train-iters 12 --save parts --load parts ";
  succeed(command(steps + "--exit-interval 6"));
  succeed(command(steps + "--tensor-model-parallel-size 2 --sequence-parallel "
                          "--pipeline-model-parallel-size 2 --micro-batch-size 4"));
  succeed(command("--train-iters 12 --save once"));
  const std::vector<double> found = losses("parts"), once = losses("once");
  ASSERT_EQ(found.size(), once.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], once[i], 2e-4 * once[i]) << i;

  // A loss of the pairs, which does not depend on micro-batches.
  const std::string directory = "whole/iter_" + fmt::format("{:07}", expected.size());
  const auto loss = [&](const std::string& micro) {
    const Outcome o =
        succeed({"eval", "--load", directory, "--input", "pairs.jsonl", "--json", "--seq-length",
                 "32", "--decoder-seq-length", "8", "--micro-batch-size", micro});
    return Json::parse(o.out);
  };
  const Json of_pairs = loss("4");
  EXPECT_EQ(of_pairs["sequences"].as_integer(), 64);
  EXPECT_LT(of_pairs["loss"].as_number(), 0.7 * expected[0]);
  EXPECT_EQ(of_pairs.dump(), loss("7").dump());
}

// Packed rows have the losses of single ones: pairs do not see each other.
TEST_F(PairCommand, PackingDoesNotChangeTheLoss) {
  const auto first = [&](const std::string& more) {
    const std::string folder = "p" + std::to_string(more.size());
    succeed(command("--train-iters 1 --save " + folder + " " + more));
    return losses(folder)[0];
  };
  // All 64 pairs in one step, in rows of several or of one.
  const double alone = first("--chat-packing none --global-batch-size 64 --micro-batch-size 8");
  const Outcome r =
      succeed(command("--epochs 1 --save rows --global-batch-size 1 "
                      "--micro-batch-size 1 --lr 0"));
  const std::vector<double> rows = losses("rows");
  ASSERT_GT(rows.size(), 4u);
  ASSERT_LT(rows.size(), 50u);
  const double packed =
      first(fmt::format("--global-batch-size {} --micro-batch-size 1", rows.size()));
  EXPECT_NEAR(packed, alone, 1e-5 * alone);
}

TEST_F(PairCommand, ShowsExamplesAndNamesBadInput) {
  const Outcome shown = succeed(command("--show 1"));
  EXPECT_NE(shown.out.find("pairs.jsonl:1, target"), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("[["), std::string::npos) << shown.out;
  const auto file = [&](const std::string& line) {
    write_file(place_ / "bad.jsonl", line + "\n");
    return command("--train-iters 1", "bad.jsonl");
  };
  refused(
      file(
          R"({"input": "a", "target": "time time time time time time time time time time time time time time time time"})"),
      {"bad.jsonl:1", "--decoder-seq-length"});
  refused(file(R"({"text": "a"})"), {"bad.jsonl:1", "--input-key"});
  refused(file(R"({"input": "a", "target": 3})"), {"bad.jsonl:1", "'target'", "not a text"});
  write_file(place_ / "other.jsonl", R"({"q": "the time of the year", "a": "year"})"
                                     "\n");
  refused(command("--train-iters 1", "other.jsonl"), {"other.jsonl:1", "--target-key"});
  succeed(command("--train-iters 1 --input-key q --target-key a", "other.jsonl"));
  const Outcome cut = succeed(command("--train-iters 1 --seq-length 4"));
  EXPECT_NE((cut.out + cut.err).find("64 texts for the encoder are cut"), std::string::npos)
      << cut.out << cut.err;
  refused(with({"seq2seq", "--model", vectors("hf/gpt2"), "--data-path", "pairs.jsonl"},
               with(tokenizer(), words("--seq-length 16 --micro-batch-size 1 --train-iters 1 "
                                       "--lr 1e-3"))),
          {"--task seq2seq", "gpt2"});
  refused(command("--train-iters 1 --chat-packing wrapped"), {"--chat-packing wrapped"});
  refused(words("train --mock-data --num-layers 1 --hidden-size 8 --num-attention-heads 1 "
                "--vocab-size 64 --seq-length 16 --micro-batch-size 1 --train-iters 1 --lr 1e-3 "
                "--input-key q"),
          {"--input-key q", "--task seq2seq"});
}

}  // namespace
}  // namespace megatron::testing
