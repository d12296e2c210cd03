// `megatron train --task span-corruption` trains encoder-decoders on sentences.
#include <gtest/gtest.h>

#include "base/json.h"
#include "golden/cli/command_test.h"
#include "golden/selftest/support.h"

namespace megatron::testing {
namespace {

constexpr const char* kTiny = R"({"model_type": "t5", "vocab_size": 384, "d_model": 32, "d_kv": 8,
  "d_ff": 64, "num_layers": 2, "num_heads": 4, "feed_forward_proj": "gated-gelu",
  "tie_word_embeddings": false, "dropout_rate": 0.1})";

class SpanCommand : public CommandTest {
 protected:
  SpanCommand() { write_file(place_ / "t5.json", kTiny); }

  static Words data(int sentinels = 40) {
    return {"--data-path",       vectors("bert_dataset/data/docs60"),
            "--vocab-file",      vectors("bert_dataset/data/wordpiece/vocab.txt"),
            "--tokenizer-type",  "BertWordPieceLowerCase",
            "--vocab-extra-ids", std::to_string(sentinels)};
  }
  static Words command(const std::string& more, int sentinels = 40) {
    return with(
        with({"train", "--task", "span-corruption", "--model-config", "t5.json"}, data(sentinels)),
        words("--seq-length 64 --decoder-seq-length 32 --micro-batch-size 2 "
              "--global-batch-size 8 --split 9,1,0 --eval-interval 25 --eval-iters 1 "
              "--log-interval 1 --lr-decay-style constant --lr 3e-3 " +
              more));
  }
};

double mean_of(const std::vector<double>& v, size_t begin, size_t end) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += v[i];
  return sum / static_cast<double>(end - begin);
}

TEST_F(SpanCommand, LossesFallAndARunGoesOnInAnotherLayout) {
  const Outcome r = place_.run(command("--train-iters 40 --save whole"));
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.err.find("samples of 64 tokens for the encoder and 32 for the decoder"),
            std::string::npos)
      << r.err;
  const std::vector<double> expected = losses("whole");
  ASSERT_EQ(expected.size(), 40u);
  EXPECT_LT(mean_of(expected, 30, 40), mean_of(expected, 0, 3) - 0.5);
  EXPECT_EQ(log_records(place_ / "whole", "validation").size(), 1u);
  EXPECT_EQ(log_records(place_ / "whole", "step")[0]["consumed_tokens"].as_integer(), 8 * 96);

  ASSERT_EQ(place_.run(command("--train-iters 40 --save parts --exit-interval 15")).code, 0);
  const Outcome rest = place_.run(
      command("--train-iters 40 --save parts --load parts --ranks 4 --tensor-model-parallel-size 2 "
              "--sequence-parallel --pipeline-model-parallel-size 2 --micro-batch-size 1"));
  ASSERT_EQ(rest.code, 0) << rest.err;
  const std::vector<double> found = losses("parts");
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], i < 15 ? 0 : 2e-4 * expected[i]) << i;

  // Its directory is a model to go on with, and to evaluate.
  const Json config = Json::read(place_ / "whole/iter_0000040/config.json");
  EXPECT_EQ(config["model_type"].as_string(), "t5");
  const Words shape = words("--seq-length 64 --decoder-seq-length 32");
  const Outcome loss = place_.run(with(with(with({"eval", "--load", "whole/iter_0000040", "--json",
                                                  "--split", "9,1,0", "--eval-samples", "6"},
                                                 data()),
                                            shape),
                                       words("--micro-batch-size 4 --seed 1234")));
  ASSERT_EQ(loss.code, 0) << loss.err;
  EXPECT_LT(Json::parse(loss.out)["loss"].as_number(), expected[0]);
  const Outcome again = place_.run(with(
      with(with({"train", "--task", "span-corruption", "--model", "whole/iter_0000040"}, data()),
           shape),
      words("--micro-batch-size 2 --train-iters 2 --lr 1e-3")));
  EXPECT_EQ(again.code, 0) << again.err;
}

// Rows of both texts on context-parallel ranks, synthetic ones as well.
TEST_F(SpanCommand, MockDataInEveryLayout) {
  const auto loss = [&](const std::string& layout) {
    const std::string folder = "mock" + std::to_string(layout.size());
    const Outcome r = place_.run(with(
        {"train", "--task", "span-corruption", "--model-config", "t5.json", "--mock-data"},
        words("--seq-length 32 --decoder-seq-length 16 --micro-batch-size 2 --global-batch-size 4 "
              "--train-iters 3 --lr 1e-3 --lr-decay-style constant --log-interval 1 --save " +
              folder + " " + layout)));
    EXPECT_EQ(r.code, 0) << r.err;
    return losses(folder);
  };
  const std::vector<double> one = loss("");
  ASSERT_EQ(one.size(), 3u);
  for (const char* layout :
       {"--context-parallel-size 2", "--pipeline-model-parallel-size 4",
        "--ranks 2 --data-parallel-sharding-strategy optim_grads_params",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"}) {
    const std::vector<double> other = loss(layout);
    ASSERT_EQ(other.size(), 3u) << layout;
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(other[i], one[i], 1e-4 * one[i]) << layout;
  }
}

TEST_F(SpanCommand, NamesWhatDoesNotFit) {
  refused(command("--train-iters 2", 0), {"sentinel", "--vocab-extra-ids"});
  refused(command("--train-iters 2", 2), {"masked spans", "only 2 sentinels", "--vocab-extra-ids"});
  refused(command("--train-iters 2 --decoder-seq-length 8"), {"--decoder-seq-length", "is 8"});
  refused(command("--train-iters 2 --context-parallel-size 3 --decoder-seq-length 33 --seq-length "
                  "66 --ranks 3"),
          {"33 tokens (--decoder-seq-length)", "multiple of 6"});
  refused(command("--train-iters 2 --tensor-model-parallel-size 2 --sequence-parallel "
                  "--decoder-seq-length 33"),
          {"--decoder-seq-length 33", "--tensor-model-parallel-size 2"});
  refused(command("--train-iters 2 --sample-interval 1 --sample-prompt a"), {"--sample-interval"});
  refused(with(with({"train", "--task", "span-corruption", "--model", vectors("hf/gpt2")}, data()),
               words("--seq-length 16 --micro-batch-size 1 --train-iters 1 --lr 1e-3")),
          {"--task span-corruption", "gpt2"});
  refused(with({"train", "--model-config", "t5.json", "--mock-data"},
               words("--seq-length 16 --micro-batch-size 1 --train-iters 1 --lr 1e-3")),
          {"encoder-decoder", "--task span-corruption"});
  refused(words("train --mock-data --num-layers 1 --hidden-size 8 --num-attention-heads 1 "
                "--vocab-size 64 --seq-length 16 --micro-batch-size 1 --train-iters 1 --lr 1e-3 "
                "--decoder-seq-length 8"),
          {"--decoder-seq-length 8", "--task span-corruption"});
}

}  // namespace
}  // namespace megatron::testing
