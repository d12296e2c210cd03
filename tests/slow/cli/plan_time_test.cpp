// Compares the step time predicted by `megatron plan` with a measurement in the same process.
// Prints both; the bound is loose and holds if the machine is quiet enough.
#include <cstdio>
#include <sstream>

#include "base/json.h"
#include "golden/cli/tiny_run.h"

namespace megatron::testing {
namespace {

constexpr double kMax = 3;

class PlanTime : public ::testing::TestWithParam<Words> {};

TEST_P(PlanTime, IsThatOfTheMeasuredStep) {
  Words words = {"bench", "step", "--json", "--no-floor", "--train-iters", "6"};
  for (const std::string& part : GetParam()) {
    std::istringstream flags(part);
    for (std::string word; flags >> word;) words.push_back(word);
  }
  const Workplace place;
  const Outcome r = place.run(words);
  ASSERT_EQ(r.code, 0) << r.err;
  const Json step = Json::parse(r.out);
  const double ratio = step["plan_ratio"].as_number(), of_one = step["step_seconds"].as_number();
  std::string runs;
  for (const Json& seconds : step["plan_runs"].as_array())
    runs += " " + std::to_string(seconds.as_number() / of_one);
  const double spread = step["gemm_peak_spread"].as_number();
  std::printf("estimate / measured: %.2f, of%s; spread of the peak %.0f%%\n", ratio, runs.c_str(),
              100 * spread);
  EXPECT_EQ(step["plan_runs"].as_array().size(), 5u);
  if (step["noisy"].as_bool()) GTEST_SKIP() << "noisy: the peak's samples lie too far apart";
  EXPECT_GT(ratio, 1 / kMax);
  EXPECT_LT(ratio, kMax);
}

const char* const kGpt =
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 "
    "--max-position-embeddings 512 --micro-batch-size 2 --vocab-size 8000 ";
const char* const kLlama =
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --group-query-attention "
    "--num-query-groups 4 --swiglu --normalization RMSNorm --position-embedding-type rope "
    "--disable-bias-linear --untie-embeddings-and-output-weights --seq-length 512 "
    "--max-position-embeddings 512 --micro-batch-size 2 --vocab-size 8000 ";

INSTANTIATE_TEST_SUITE_P(
    Runs, PlanTime,
    ::testing::Values(Words{kGpt}, Words{kGpt, "--bf16"},
                      Words{kLlama,
                            "--recompute-granularity full --recompute-method uniform "
                            "--recompute-num-layers 1 --global-batch-size 6"},
                      Words{kGpt, "--ranks 2 --global-batch-size 8"}));

}  // namespace
}  // namespace megatron::testing
