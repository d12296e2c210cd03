// The commands that use encoders, compared with numbers of transformers 5.24.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "golden/cli/log_records.h"
#include "golden/cli/process.h"
#include "golden/selftest/support.h"
#include "headless_bert.h"
#include "text.h"
#include "word_vocabulary.h"

namespace megatron::testing {
namespace {

class EncoderCommands : public ::testing::Test {
 protected:
  void SetUp() override { write_word_vocabulary(place_ / "words", 160); }

  static Words of(const std::string& model, const Words& line) {
    return with(line, {"--load", vectors("hf/" + model), "--threads", "2"});
  }
  Outcome succeed(const Words& line) const {
    Outcome r = place_.run(line);
    EXPECT_EQ(r.code, 0) << r.err;
    return r;
  }
  void refused(const Words& line, std::initializer_list<std::string_view> parts) const {
    const Outcome r = place_.run(line);
    EXPECT_EQ(r.code, 2) << r.out << r.err;
    expect_contains(r.err, parts);
  }

  Workplace place_;
  const Words words_ = {"--tokenizer-model", "words"};
};

TEST_F(EncoderCommands, GenerateFillsMasks) {
  const Words line = with(of("bert", {"generate", "--fill-mask", "--top-k", "2"}), words_);
  const Json one = Json::parse(succeed(with(line, {"--prompt", "w10 w20 [MASK] w30"})).out);
  ASSERT_EQ(one.as_array().size(), 2u);
  EXPECT_NEAR(one.as_array()[0]["score"].as_number(), 0.0453381, 1e-5);
  EXPECT_EQ(one.as_array()[0]["token_str"].as_string(), "w67");
  EXPECT_EQ(one.as_array()[1]["sequence"].as_string(), "w10 w20 w83 w30");
  const Json two =
      Json::parse(succeed(with(line, {"--prompt", "w10 w20 [MASK] w30", "w7 [MASK] [MASK]"})).out);
  ASSERT_EQ(two.as_array().size(), 2u);
  EXPECT_EQ(two.as_array()[0].dump(), one.dump());
  EXPECT_EQ(two.as_array()[1].as_array()[0].as_array()[0]["token"].as_integer(), 22);
  refused(with(line, {"--prompt", "w10"}), {"has no mask", "[MASK]"});
  refused(with(line, {"--prompt", "[MASK]", "--output", "x"}), {"--fill-mask", "--output"});
}

// The text of an encoder-decoder does not continue the prompt, and is printed alone.
TEST_F(EncoderCommands, GenerateWritesTextsOfEncoderDecoders) {
  const Words model = with({"generate", "--load", vectors("t5/hf/t5"), "--threads", "2"}, words_);
  const Words line = with(model, words("--temperature 0 --max-tokens 6"));
  const std::string text = succeed(with(line, {"--prompt", "w10 w20"})).out;
  EXPECT_GT(count(text, "w"), 2u) << text;
  EXPECT_FALSE(text.starts_with("w10 w20")) << text;
  EXPECT_EQ(succeed(with(line, {"--prompt", "w10 w20", "--pipeline-model-parallel-size", "3"})).out,
            text);
  succeed(with(line, {"--prompt", "w99", "w10 w20", "--logprobs", "1", "--output", "texts.jsonl"}));
  std::ifstream lines(place_ / "texts.jsonl");
  std::string second;
  std::getline(lines, second);
  std::getline(lines, second);
  const Json json = Json::parse(second);
  EXPECT_EQ(json["text"].as_string() + "\n", text);
  EXPECT_EQ(json["prompt_tokens"].dump(), "[2, 10, 20, 3]");
  EXPECT_EQ(json["logprobs"].as_array().size(), json["tokens"].as_array().size());
  EXPECT_FALSE(json.contains("prompt_logprobs"));
  refused(with(model, {"--prompt", "w10", "--max-tokens", "0"}), {"--max-tokens is 0", "t5"});
}

TEST_F(EncoderCommands, CommandsForDecodersNameWhatToUse) {
  refused(
      with(of("bert", {"generate", "--prompt", "w10"}), words_),
      {"an encoder (bert)", "megatron generate needs a decoder", "--fill-mask", "megatron serve"});
  refused(with(of("bert_classify", {"generate", "--fill-mask", "--prompt", "[MASK]"}), words_),
          {"head of 3 scores", "/v1/classify"});
  refused(
      of("llama", {"generate", "--fill-mask", "--prompt", "[MASK]", "--tokenizer-model", "words"}),
      {"a decoder (llama)", "needs an encoder"});
  refused(with(of("bert", {"eval", "--against-engine", "--input", "x"}), words_), {"an encoder"});
  const Words filled = with(of("bert", {"generate", "--fill-mask", "--prompt", "[MASK]"}), words_);
  refused(with(filled, {"--temperature", "0.5"}), {"--temperature has no effect", "--top-k"});
  refused(with(filled, {"--output", "x.jsonl"}), {"--output has no effect", "--fill-mask"});
}

TEST_F(EncoderCommands, AModelWithoutAHeadIsForEmbeddingsAndNewHeads) {
  std::filesystem::create_directory(place_ / "sentences");
  write_headless_bert(place_ / "sentences");
  const Words load = with({"--load", "sentences", "--threads", "2"}, words_);
  refused(with(with({"generate", "--fill-mask", "--prompt", "[MASK]"}, load), {}),
          {"(bert) has no head", "masked language model's head", "/v1/embeddings"});
  refused(with({"eval", "--input", "x"}, load), {"(bert) has no head", "megatron eval"});
  const Words run = with({"--model", "sentences", "--seq-length", "16", "--micro-batch-size", "2",
                          "--train-iters", "2", "--lr", "1e-3"},
                         words_);
  refused(with(with({"train", "--task", "mlm", "--data-path", "x"}, run), {}),
          {"--task mlm", "a bert without one", "has no head"});
  std::ofstream(place_ / "labels.jsonl") << R"({"text": "w10 w20", "label": "a"})"
                                         << "\n"
                                         << R"({"text": "w30 w20", "label": "b"})"
                                         << "\n";
  const Outcome r =
      place_.run(with({"classify", "--data-path", "labels.jsonl", "--save", "classifier"}, run));
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(Json::read(place_ / "classifier/iter_0000002/config.json")["architectures"].dump(),
            R"(["BertForSequenceClassification"])");
}

TEST_F(EncoderCommands, EvalGivesThePseudoPerplexityOfTexts) {
  std::ofstream(place_ / "texts.jsonl") << R"({"text": "w10 w20 w30"})"
                                        << "\n"
                                        << R"({"text": "w99 w98 w97 w96 w95"})"
                                        << "\n";
  const Words line = with(of("bert", {"eval", "--input", "texts.jsonl", "--json"}), words_);
  const Json found = Json::parse(succeed(with(line, {"--per-document", "losses.jsonl"})).out);
  EXPECT_NEAR(found["pseudo_perplexity"].as_number(), 180.94644, 2e-3);
  EXPECT_EQ(found["tokens"].as_integer(), 8);
  EXPECT_EQ(found["documents"].as_integer(), 2);
  std::ifstream lines(place_ / "losses.jsonl");
  std::string first;
  std::getline(lines, first);
  EXPECT_NEAR(Json::parse(first)["sum"].as_number(), 15.9186869, 1e-4);
  // Texts beyond --seq-length are read in parts, each with the tokens around it.
  const Json parts = Json::parse(succeed(with(line, {"--seq-length", "4"})).out);
  EXPECT_EQ(parts["tokens"].as_integer(), 8);
  EXPECT_EQ(parts["sequences"].as_integer(), 5);
  EXPECT_NE(parts["loss"].as_number(), found["loss"].as_number());
  refused(with(line, {"--seq-length", "2"}), {"--seq-length is 2", "2 tokens around"});
  refused(with(line, {"--stride", "2"}), {"--stride", "an encoder"});
  refused(with(of("llama", {"eval", "--data-path", "x", "--stride", "2"}), words_), {"x"});
}

TEST_F(EncoderCommands, EvalGivesTheLossOfMaskedTokens) {
  {
    std::ofstream texts(place_ / "texts.jsonl");
    for (int i = 0; i < 60; ++i)
      texts << R"({"text": ["w)" << 5 + i << " w" << 20 + i << " w" << 30 + i % 7 << R"( w9", "w)"
            << 90 - i << " w" << 12 + i << " w8 w7\"]}\n";
  }
  succeed(with({"preprocess", "--input", "texts.jsonl", "--output-prefix", "sentences",
                "--split-sentences", "--workers", "1"},
               words_));
  const Words line = with(of("bert", {"eval", "--data-path", "sentences_text_sentence", "--split",
                                      "0,100,0", "--seq-length", "32", "--json"}),
                          words_);
  const Json found = Json::parse(succeed(with(line, {"--eval-samples", "40"})).out);
  EXPECT_GT(found["tokens"].as_integer(), 40);
  EXPECT_GT(found["loss"].as_number(), 4);  // random weights: about the log of 160 tokens
  EXPECT_LT(found["loss"].as_number(), 8);
  const Json again =
      Json::parse(succeed(with(line, {"--eval-samples", "40", "--micro-batch-size", "7"})).out);
  EXPECT_EQ(again["loss"], found["loss"]);
  // Without a number, one pass over the documents of the set.
  const Json pass = Json::parse(succeed(line).out);
  EXPECT_GT(pass["sequences"].as_integer(), 1);
  const Json counted = Json::parse(
      succeed(with(line, {"--eval-samples", std::to_string(pass["sequences"].as_integer())})).out);
  EXPECT_EQ(counted["loss"], pass["loss"]);
  refused(with(of("bert", {"eval", "--mock-data", "--seq-length", "32"}), words_),
          {"--eval-samples N is needed"});
  const Json most =
      Json::parse(succeed(with(line, {"--eval-samples", "40", "--mask-prob", "0.5"})).out);
  EXPECT_GT(most["tokens"].as_integer(), 2 * found["tokens"].as_integer());
  std::ofstream(place_ / "text.txt") << "w10 w20";
  refused(with(of("bert", {"eval", "--input", "text.txt", "--mask-prob", "0.5"}), words_),
          {"--mask-prob", "masked in turn"});
}

// A masked language model becomes a classifier that transformers' class reads.
TEST_F(EncoderCommands, ClassifyTrainsAHeadAtTheFirstToken) {
  {
    std::ofstream labels(place_ / "labels.jsonl");
    for (int i = 0; i < 40; ++i)
      labels << R"({"text": "w)" << (i % 2 == 0 ? "20" : "30") << " w" << 40 + i
             << R"(", "label": ")" << (i % 2 == 0 ? "even" : "odd") << "\"}\n";
  }
  const Words line = with(
      {"classify", "--data-path", "labels.jsonl"},
      with(words_, words("--seq-length 32 --micro-batch-size 2 --global-batch-size 4 --lr 3e-3 "
                         "--train-iters 20 --log-interval 1 --hidden-dropout 0 "
                         "--attention-dropout 0 --threads 1")));
  const Outcome r = succeed(with(line, {"--model", vectors("hf/bert"), "--save", "run"}));
  expect_contains(r.err, {"its output layer is replaced by classifier.weight", "classifier.bias"});
  EXPECT_FALSE(has(r.err, "bert.pooler.dense.weight, "));  // the model has one
  const Json config = Json::read(place_ / "run/iter_0000020/config.json");
  EXPECT_EQ(config["architectures"].dump(), R"(["BertForSequenceClassification"])");
  EXPECT_EQ(config["id2label"].dump(), R"({"0": "even", "1": "odd"})");
  const std::vector<Json> steps = log_records(place_ / "run", "step");
  EXPECT_LT(steps.back()["loss"].as_number(), steps.front()["loss"].as_number());
  const Json found = Json::parse(
      succeed(
          with({"eval", "--load", "run/iter_0000020", "--input", "labels.jsonl", "--json"}, words_))
          .out);
  EXPECT_EQ(found["texts"].as_integer(), 40);
  EXPECT_GT(found["accuracy"].as_number(), 0.9);
  // Rows of one text each have the same loss as packed ones.
  const Outcome shown = succeed(with(
      {"classify", "--model", vectors("hf/bert"), "--data-path", "labels.jsonl", "--show", "1"},
      words_));
  expect_contains(shown.out, {"[[[CLS]]]w20 w40 [SEP]"});
  refused(with({"token-classification", "--data-path", "labels.jsonl", "--show", "1"}, words_),
          {"--show", "give --model DIR"});
}

}  // namespace
}  // namespace megatron::testing
