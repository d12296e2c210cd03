// `megatron train --task mlm` trains encoders on sentences.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/json.h"
#include "golden/cli/command_test.h"
#include "golden/selftest/support.h"

namespace megatron::testing {
namespace {

class MaskedCommand : public CommandTest {
 protected:
  static std::string tokenizer() { return vectors("bert_dataset/data/wordpiece"); }
  static Words command(const std::string& more) {
    return with({"train", "--task", "mlm", "--tokenizer-model", tokenizer(), "--data-path",
                 vectors("bert_dataset/data/docs60")},
                words("--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 64 "
                      "--max-position-embeddings 64 --micro-batch-size 2 --global-batch-size 8 "
                      "--split 9,1,0 --eval-interval 25 --eval-iters 1 --log-interval 1 "
                      "--lr-decay-style constant --lr 3e-3 --hidden-dropout 0.1 " +
                      more));
  }
  std::vector<double> values(const std::string& folder, const std::string& key) const {
    std::vector<double> all;
    for (const Json& record : log_records(place_ / folder, "step"))
      all.push_back((key == "loss" ? record : record["metrics"])[key].as_number());
    return all;
  }
};

double mean(const std::vector<double>& v, size_t begin, size_t end) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += v[i];
  return sum / static_cast<double>(end - begin);
}

TEST_F(MaskedCommand, LossesFallAndARunGoesOnInAnotherLayout) {
  const Outcome r = place_.run(command("--train-iters 50 --save whole"));
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("| lm loss "), std::string::npos) << r.out;
  const std::vector<double> lm = values("whole", "lm loss"), pairs = values("whole", "sop loss");
  ASSERT_EQ(lm.size(), 50u);
  EXPECT_LT(mean(lm, 40, 50), mean(lm, 0, 5) - 0.1);
  EXPECT_LT(mean(pairs, 40, 50), mean(pairs, 0, 5) + 0.05);
  const std::vector<Json> validations = log_records(place_ / "whole", "validation");
  ASSERT_EQ(validations.size(), 2u);
  EXPECT_TRUE(validations[1].contains("pair accuracy")) << validations[1].dump();

  // eval tells pairs, too, whose loss and accuracy do not depend on how they are divided.
  const auto evaluated = [&](const std::string& more) {
    const Outcome eval =
        place_.run(with({"eval", "--load", "whole/iter_0000050", "--tokenizer-model", tokenizer(),
                         "--data-path", vectors("bert_dataset/data/docs60"), "--json"},
                        words("--split 9,1,0 --seq-length 64 --eval-samples 8 " + more)));
    EXPECT_EQ(eval.code, 0) << eval.err;
    return Json::parse(eval.out);
  };
  const Json found = evaluated("--micro-batch-size 3");
  EXPECT_EQ(found["pairs"].as_integer(), 8);
  EXPECT_NEAR(found["loss"].as_number(), validations[1]["lm loss"].as_number(), 0.3);
  EXPECT_NEAR(found["pair_loss"].as_number(), validations[1]["sop loss"].as_number(), 0.1);
  const double eighths = 8 * found["pair_accuracy"].as_number();
  EXPECT_EQ(eighths, std::round(eighths));
  EXPECT_EQ(evaluated("--micro-batch-size 2 --ranks 2").dump(), found.dump());

  ASSERT_EQ(place_.run(command("--train-iters 50 --save parts --exit-interval 20")).code, 0);
  std::filesystem::copy(place_ / "parts", place_ / "drawn",
                        std::filesystem::copy_options::recursive);
  const Outcome rest = place_.run(
      command("--train-iters 50 --save parts --load parts --ranks 4 --tensor-model-parallel-size 2 "
              "--sequence-parallel --pipeline-model-parallel-size 2"));
  ASSERT_EQ(rest.code, 0) << rest.err;
  const std::vector<double> losses = values("parts", "loss"), expected = values("whole", "loss");
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(losses[i], expected[i], i < 20 ? 0 : 2e-4 * expected[i]) << i;
  // Masks that are drawn anew, here by another seed, are seen in the losses.
  ASSERT_EQ(
      place_.run(command("--train-iters 50 --save drawn --load drawn --seed 77 --exit-interval 21"))
          .code,
      0);
  EXPECT_GT(std::abs(values("drawn", "loss").back() - expected[20]), 5 * 2e-4 * expected[20]);

  // Its directory is a model to go on with, and to classify texts with.
  const Json config = Json::read(place_ / "whole/iter_0000050/config.json");
  EXPECT_EQ(config["model_type"].as_string(), "megatron");
  const Outcome again =
      place_.run({"train", "--task", "mlm", "--model", "whole/iter_0000050", "--data-path",
                  vectors("bert_dataset/data/docs60"), "--seq-length", "32", "--micro-batch-size",
                  "2", "--train-iters", "2", "--lr", "1e-3"});
  EXPECT_EQ(again.code, 0) << again.err;
  refused({"generate", "--load", "whole/iter_0000050", "--prompt", "a"}, {"encoder"});
}

TEST_F(MaskedCommand, HuggingFacesBertOfFlags) {
  const Outcome r = place_.run(command(
      "--train-iters 2 --model-family bert --norm-epsilon 1e-12 --attention-dropout 0.1 --save b"));
  ASSERT_EQ(r.code, 0) << r.err;
  const Json config = Json::read(place_ / "b/iter_0000002/config.json");
  EXPECT_EQ(config["architectures"].dump(), R"(["BertForPreTraining"])");
  const Outcome single =
      place_.run(command("--train-iters 2 --model-family bert --bert-no-binary-head --save one"));
  ASSERT_EQ(single.code, 0) << single.err;
  EXPECT_EQ(Json::read(place_ / "one/iter_0000002/config.json")["architectures"].dump(),
            R"(["BertForMaskedLM"])");
  EXPECT_FALSE(log_records(place_ / "one", "step")[0]["metrics"].contains("sop loss"));
}

TEST_F(MaskedCommand, AnExtendedRunKeepsItsOrder) {
  const std::string evaluates = " --eval-interval 100 ";
  ASSERT_EQ(place_.run(command("--train-iters 4 --save parts" + evaluates)).code, 0);
  std::filesystem::copy(place_ / "parts", place_ / "other",
                        std::filesystem::copy_options::recursive);
  const std::string longer = "--train-iters 4 --extend-to-iters 40" + evaluates;  // several epochs
  const Outcome rest = place_.run(command(longer + "--save parts --load parts"));
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ((rest.out + rest.err).find("shuffled differently"), std::string::npos) << rest.err;
  ASSERT_EQ(place_.run(command(longer + "--save whole")).code, 0);
  EXPECT_EQ(values("parts", "loss"), values("whole", "loss"));
  // More steps without the flag are another order, and say so.
  const Outcome other = place_.run(
      command("--train-iters 40 --exit-interval 5 --save other --load other" + evaluates));
  EXPECT_NE((other.out + other.err).find("shuffled differently"), std::string::npos) << other.err;
  EXPECT_NE((other.out + other.err).find("--extend-to-iters 40"), std::string::npos) << other.err;
}

// RoBERTa has one token type.
TEST_F(MaskedCommand, MockDataFitsAModelWithoutPairs) {
  const Outcome r = place_.run(with(
      {"train", "--task", "mlm", "--mock-data", "--model", vectors("hf/roberta")},
      words("--seq-length 16 --micro-batch-size 2 --train-iters 2 --lr 1e-3 --log-interval 1")));
  EXPECT_EQ(r.code, 0) << r.err;
}

TEST_F(MaskedCommand, RefusesWhatDoesNotFit) {
  refused(command("--train-iters 2 --mask-prob 1.5"), {"--mask-prob", "1.5"});
  refused(words("train --task mlm --mock-data --vocab-size 64 --num-layers 1 --hidden-size 16 "
                "--num-attention-heads 2 --seq-length 8 --micro-batch-size 1 --train-iters 1 --lr "
                "1e-3 --mask-prob 1.5"),
          {"--mask-prob", "1.5"});
  refused(command("--train-iters 2 --multi-latent-attention"), {"--multi-latent-attention"});
  refused(command("--train-iters 2 --window-size 4,0"), {"--window-size", "4,4"});
  refused(with({"train", "--task", "mlm", "--model", vectors("hf/gpt2"), "--tokenizer-model",
                tokenizer(), "--data-path", vectors("bert_dataset/data/docs60")},
               words("--seq-length 16 --micro-batch-size 1 --train-iters 1 --lr 1e-3")),
          {"--task mlm", "gpt2"});
  refused(with({"train", "--model", vectors("hf/bert"), "--tokenizer-model", tokenizer()},
               words("--mock-data --seq-length 16 --micro-batch-size 1 --train-iters 1 --lr 1e-3")),
          {"encoder", "--task mlm"});
}

}  // namespace
}  // namespace megatron::testing
