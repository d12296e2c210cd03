// The complete GPT-2 124M: cached against uncached logits, and log-probabilities against
// evaluation's losses.
#include "golden/inference/bits.h"
#include "golden/inference/losses.h"

namespace megatron::testing {
namespace {

class Gpt2Of124M : public ::testing::TestWithParam<DType> {};

TEST_P(Gpt2Of124M, BitsOfOnePass) {
  RandomModel m(gpt2_shape(12, 768, 12, 50257, 1024), GetParam());
  expect_bits_of_one_pass(m, {1, 40, 300}, {1, 4, 9}, {7, 512});
  expect_bits_of_one_pass(m, {100}, {9}, {1});
}

TEST_P(Gpt2Of124M, LogProbabilitiesAreMinusTheLosses) {
  RandomModel m(gpt2_shape(12, 768, 12, 50257, 1024), GetParam());
  std::vector<inference::Request> requests;
  for (const int64_t length : {1, 300, 50, 120}) {
    requests.push_back({.number = requests.size(),
                        .prompt = random_tokens(length, 50257, 9),
                        .max_tokens = 3,
                        .logprobs = 1});
  }
  const auto results =
      inference::generate(m.model, m.runtime, requests, {.max_requests = 3, .max_tokens = 128});
  for (size_t i = 0; i < requests.size(); ++i)
    expect_losses_of_evaluation(m, requests[i], results[i]);
}

INSTANTIATE_TEST_SUITE_P(Types, Gpt2Of124M, ::testing::Values(DType::f32, DType::bf16));

}  // namespace
}  // namespace megatron::testing
