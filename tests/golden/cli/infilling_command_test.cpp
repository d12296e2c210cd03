// `megatron train --fim-data` trains a decoder to fill in the middle of documents.
#include <gtest/gtest.h>

#include "base/json.h"
#include "golden/cli/command_test.h"
#include "golden/selftest/support.h"

namespace megatron::testing {
namespace {

class InfillingCommand : public CommandTest {
 protected:
  InfillingCommand() {
    for (const char* name : {"prose", "repos"})
      for (const char* suffix : {".bin", ".idx"})
        std::filesystem::copy(vectors("fim_dataset/data/") + name + suffix,
                              place_ / (name + std::string(suffix)));
  }
  static Words tokenizer() {
    return {"--tokenizer-model",
            vectors("indexed/preprocess/tokenizer_bpe2k"),
            "--tokenizer-special-tokens",
            "<fim_prefix>",
            "<fim_middle>",
            "<fim_suffix>",
            "<fim_pad>",
            "<|file|>"};
  }
  static Words command(const std::string& more) {
    return with(with({"train"}, tokenizer()),
                words("--data-path 0.6 prose 0.4 repos --split 8,2,0 --fim-data --num-layers 1 "
                      "--hidden-size 16 --num-attention-heads 2 --seq-length 48 "
                      "--global-batch-size 4 --train-iters 6 --lr 1e-2 --lr-decay-style constant "
                      "--eval-interval 3 --eval-iters 1 --log-interval 1 --hidden-dropout 0 "
                      "--attention-dropout 0 --reset-attention-mask --reset-position-ids " +
                      more));
  }
  // Losses of the run's steps, then those of its validations.
  std::vector<double> all_losses(const std::string& run) const {
    std::vector<double> all = losses(run);
    const std::vector<double> validations = losses(run, "validation");
    all.insert(all.end(), validations.begin(), validations.end());
    return all;
  }
};

TEST_F(InfillingCommand, ABlendGoesOnInAnotherLayoutWithTheSameSamples) {
  const Outcome whole = place_.run(command("--micro-batch-size 2 --save whole"));
  ASSERT_EQ(whole.code, 0) << whole.err;
  ASSERT_EQ(place_.run(command("--micro-batch-size 2 --save parts --exit-interval 2")).code, 0);
  const Outcome rest =
      place_.run(command("--micro-batch-size 1 --ranks 2 --save parts --load parts"));
  ASSERT_EQ(rest.code, 0) << rest.err;
  const std::vector<double> expected = all_losses("whole"), parts = all_losses("parts");
  ASSERT_EQ(expected.size(), 8u);
  ASSERT_EQ(parts.size(), expected.size());
  for (size_t i = 0; i < parts.size(); ++i) EXPECT_NEAR(parts[i], expected[i], 1e-5) << i;

  Words plain = command("--micro-batch-size 2 --save plain");
  std::erase(plain, "--fim-data");
  ASSERT_EQ(place_.run(plain).code, 0);
  EXPECT_NE(all_losses("plain")[0], expected[0]);
  // A run that goes on without it says so.
  plain = command("--micro-batch-size 2 --save parts --load parts --train-iters 7");
  std::erase(plain, "--fim-data");
  const Outcome other = place_.run(plain);
  EXPECT_NE((other.out + other.err).find("fim-data"), std::string::npos) << other.err;
}

TEST_F(InfillingCommand, EvaluatesSamples) {
  ASSERT_EQ(place_.run(command("--micro-batch-size 2 --save run")).code, 0);
  const auto loss = [&](const std::string& more) {
    const Outcome r = place_.run(
        with(words("eval --load run --data-path prose --split 1,0,0 --eval-set train --seq-length "
                   "48 --json"),
             words(more)));
    EXPECT_EQ(r.code, 0) << r.err;
    return r.code == 0 ? Json::parse(r.out)["loss"].as_number() : 0;
  };
  const double plain = loss(""), filled = loss("--fim-data --fim-rate 1");
  EXPECT_NE(plain, filled);
  EXPECT_EQ(loss("--fim-data --fim-rate 1 --micro-batch-size 1 --ranks 2"), filled);
  EXPECT_EQ(loss("--fim-data --fim-rate 0"), plain);
  refused(words("eval --load run --data-path prose --fim-data --per-document out"),
          {"--fim-data", "--per-document"});
}

TEST_F(InfillingCommand, RefusesWhatDoesNotFit) {
  Words no_tokens = command("--micro-batch-size 1");
  no_tokens.erase(no_tokens.begin() + 3, no_tokens.begin() + 9);
  refused(no_tokens, {"<fim_prefix>", "--fim-prefix-token", "--tokenizer-special-tokens"});
  refused(command("--micro-batch-size 1 --fim-middle-token nowhere"),
          {"'nowhere'", "--fim-middle-token"});
  refused(command("--micro-batch-size 1 --fim-eod-token <|file|>"),
          {"--fim-eod-token is '<|file|>'", "end with '<|endoftext|>'"});
  refused(command("--micro-batch-size 1 --fim-rate 2"), {"--fim-rate is 2"});
  refused(command("--micro-batch-size 1 --fim-split-sample <|file|>"),
          {"--fim-split-sample", "--fim-fragment-rate"});
  refused(command("--micro-batch-size 1 --megatron-data-order"),
          {"--megatron-data-order", "--fim-data"});
  refused(words("train --mock-data --vocab-size 64 --fim-data --num-layers 1 --hidden-size 16 "
                "--num-attention-heads 2 --seq-length 8 --micro-batch-size 1 --train-iters 1 "
                "--lr 1e-3"),
          {"--fim-data", "--tokenizer-model"});
}

}  // namespace
}  // namespace megatron::testing
