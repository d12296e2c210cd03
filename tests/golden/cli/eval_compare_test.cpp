// `megatron eval --compare`: the losses of two models on several domains.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/json.h"
#include "golden/cli/tiny_run.h"
#include "training/model_comparison.h"

namespace megatron::testing {
namespace {

using training::DomainLosses, training::EvaluationResult;

EvaluationResult result_of(const std::vector<std::pair<double, double>>& documents) {
  EvaluationResult result;
  for (const auto& [sum, tokens] : documents) {
    result.documents.push_back({.place = "", .loss = {.sum = sum, .tokens = tokens}});
    result.loss.sum += sum;
    result.loss.tokens += tokens;
  }
  return result;
}

TEST(ModelComparison, HasTheErrorOfARatio) {
  const DomainLosses losses = training::domain_losses("a", result_of({{10, 5}, {30, 10}, {6, 5}}),
                                                      result_of({{11, 5}, {25, 10}, {6, 5}}));
  EXPECT_EQ(losses.tokens, 20);
  EXPECT_DOUBLE_EQ(losses.before, 46.0 / 20);
  EXPECT_DOUBLE_EQ(losses.after, 42.0 / 20);
  // Residuals: the documents' differences are 1, -5, 0; the mean is -0.2 per token.
  const double squares = 2 * 2 + 3 * 3 + 1 * 1;
  EXPECT_NEAR(losses.error, std::sqrt(squares * 3 / 2) / 20, 1e-12);
  EXPECT_TRUE(
      std::isnan(training::domain_losses("a", result_of({{1, 1}}), result_of({{1, 1}})).error));
}

TEST(EvalCompare, AModelWithItselfAndWithAnother) {
  const Workplace place;
  for (const char* name : {"one.jsonl", "two.jsonl"}) {
    std::ofstream file(place / name);
    for (int d = 0; d < 4; ++d) {
      file << R"({"text": ")";
      for (int i = 0; i < 20; ++i) file << (i * 7 + d * 31 + name[0]) % 90 << " ";
      file << "\"}\n";
    }
  }
  const auto command = [&](const char* other, const Words& more) {
    return with(
        {"eval", "--load", vectors("hf/llama"), "--compare", vectors(std::string("hf/") + other),
         "--tokenizer-type", "NullTokenizer", "--input", "one.jsonl", "two.jsonl"},
        more);
  };
  const Outcome same = place.run(command("llama", {"--json"}));
  ASSERT_EQ(same.code, 0) << same.err;
  const Json domains = Json::parse(same.out)["domains"];
  ASSERT_EQ(domains.as_array().size(), 2u);
  for (const Json& domain : domains.as_array()) {
    EXPECT_EQ(domain["difference"].as_number(), 0);
    EXPECT_EQ(domain["standard_error"].as_number(), 0);
    EXPECT_EQ(domain["documents"].as_integer(), 4);
  }
  const Outcome table = place.run(command("mistral", {}));
  ASSERT_EQ(table.code, 0) << table.err;
  for (const char* part : {"one.jsonl", "two.jsonl", "before", "after", " +- "})
    EXPECT_NE(table.out.find(part), std::string::npos) << table.out;
  const Outcome none =
      place.run(with({"eval", "--load", vectors("hf/llama")}, words("--compare y --data-path z")));
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("--compare needs --input"), std::string::npos) << none.err;
}

}  // namespace
}  // namespace megatron::testing
