// `megatron eval` of models with a score head, on the golden directories.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "golden/cli/tiny_run.h"

namespace megatron::testing {
namespace {

class EvalScores : public ::testing::Test {
 protected:
  EvalScores() {
    const checkpoint::SafetensorsFile expected(vectors("hf/llama_classify") +
                                               "/expected.safetensors");
    const std::vector<int64_t> ids = expected.integers("input_ids");
    const std::vector<double> logits = expected.doubles("logits");
    for (size_t r = 0; r < 2; ++r) {
      for (size_t t = 0; t < 24; ++t) texts_[r] += std::to_string(ids[r * 24 + t]) + " ";
      const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(3 * r);
      best_[r] = std::max_element(begin, begin + 3) - begin;
    }
  }

  std::string labelled(size_t row, const std::string& label) const {
    return "{\"text\": \"" + texts_[row] + "\", \"label\": " + label + "}\n";
  }
  Words command(const char* model, const Words& more) const {
    return with({"eval", "--load", vectors(std::string("hf/") + model), "--tokenizer-type",
                 "NullTokenizer", "--threads", "1"},
                more);
  }
  Json json(const Words& arguments) {
    const Outcome r = place_.run(with(arguments, {"--json"}));
    EXPECT_EQ(r.code, 0) << r.err;
    return Json::parse(r.out);
  }
  void fails(const Words& arguments, const Words& parts) {
    const Outcome r = place_.run(arguments);
    EXPECT_EQ(r.code, 2) << r.out;
    for (const std::string& part : parts)
      EXPECT_NE(r.err.find(part), std::string::npos) << part << " is not in\n" << r.err;
  }

  std::string texts_[2];
  int64_t best_[2] = {};  // labels by transformers' logits
  Workplace place_;
};

TEST_F(EvalScores, ClassifiersAgreeWithTransformers) {
  const int64_t wrong = (best_[1] + 1) % 3;
  write_file(place_ / "texts.jsonl", labelled(0, std::to_string(best_[0])) +
                                         labelled(1, "\"LABEL_" + std::to_string(best_[1]) + "\"") +
                                         labelled(1, std::to_string(wrong)));
  const Words eval = command("llama_classify", {"--input", "texts.jsonl"});
  const Json result = json(eval);
  EXPECT_EQ(result["texts"].as_integer(), 3);
  EXPECT_NEAR(result["accuracy"].as_number(), 2.0 / 3, 1e-12);
  std::vector<std::vector<int64_t>> counts(3, std::vector<int64_t>(3));
  const auto at = [](int64_t label) { return static_cast<size_t>(label); };
  ++counts[at(best_[0])][at(best_[0])];
  ++counts[at(best_[1])][at(best_[1])];
  ++counts[at(wrong)][at(best_[1])];
  for (size_t i = 0; i < 3; ++i)
    for (size_t k = 0; k < 3; ++k)
      EXPECT_EQ(result["confusion"].as_array()[i].as_array()[k].as_integer(), counts[i][k]);
  const Json& of_label = result["classes"].as_array()[at(best_[1])];
  const int64_t right = counts[at(best_[1])][at(best_[1])];
  EXPECT_NEAR(of_label["precision"].as_number(),
              static_cast<double>(right) / static_cast<double>(right + 1), 1e-12);
  EXPECT_EQ(place_.run(eval).out.substr(0, 30), "accuracy 0.6667 of 3 texts\nlab");
}

TEST_F(EvalScores, RewardsOfSwappedPairsAreOpposite) {
  const auto pair = [&](const char* name, const std::string& chosen, const std::string& rejected) {
    write_file(place_ / name, "{\"chosen\": \"" + chosen + "\", \"rejected\": \"" + rejected +
                                  "\", \"margin\": -100}\n");
    return json(command("llama_reward", {"--input", name}));
  };
  const Json one = pair("one.jsonl", texts_[0], texts_[1]);
  const Json two = pair("two.jsonl", texts_[1], texts_[0]);
  EXPECT_EQ(one["pairs"].as_integer(), 1);
  EXPECT_EQ(one["accuracy"].as_number() + two["accuracy"].as_number(), 1);
  EXPECT_EQ(one["mean_difference"].as_number(), -two["mean_difference"].as_number());
  EXPECT_EQ(one["accuracy"].as_number() == 1, one["mean_difference"].as_number() > 0);
  EXPECT_EQ(one["at_margin"].as_number(), 1);
}

TEST_F(EvalScores, ErrorsNameTheLineOrTheFlag) {
  write_file(place_ / "bad.jsonl", labelled(0, "1") + labelled(1, "\"none such\""));
  fails(command("llama_classify", {"--input", "bad.jsonl"}),
        {"bad.jsonl:2", "none such", "LABEL_0"});
  fails(command("llama_reward", {"--input", "bad.jsonl"}), {"bad.jsonl:1", "chosen"});
  fails(command("llama_classify", {}), {"--input FILE"});
  fails(command("llama_classify", {"--input", "bad.jsonl", "--stride", "3"}),
        {"--stride does not apply to a model with a score head"});
  fails({"generate", "--load", vectors("hf/llama_classify"), "--prompt", "1"},
        {"megatron generate", "POST /v1/classify", "megatron eval --input"});
}

}  // namespace
}  // namespace megatron::testing
