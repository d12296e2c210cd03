// GPT-2 124M: a token late in a text costs little more than an early one, because keys and values
// are cached.
#include <algorithm>

#include "base/clock.h"
#include "golden/inference/support.h"

namespace megatron::testing {
namespace {

constexpr int64_t kTokens = 20;
constexpr int kRounds = 3;

// Appends the seconds of each token after a text of `position` tokens.
void time_tokens(RandomModel& m, int64_t position, std::vector<double>& seconds) {
  const std::vector<inference::Request> requests = {
      {.prompt = random_tokens(position, 50257, 9), .max_tokens = kTokens + 1}};
  double before = 0;
  inference::generate(m.model, m.runtime, requests, {.max_requests = 1, .max_tokens = 512},
                      [&](size_t, const inference::GeneratedToken&) {
                        const double now = now_seconds();
                        if (before > 0) seconds.push_back(now - before);
                        before = now;
                        return true;
                      });
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.at(values.size() / 2);
}

class TimePerToken : public ::testing::TestWithParam<DType> {};

// Alternates both positions, so that a slow phase of the machine affects both.
TEST_P(TimePerToken, AtPosition900IsAtMostOneAndAHalfTimesThatAt100) {
  RandomModel m(gpt2_shape(12, 768, 12, 50257, 1024), GetParam());
  std::vector<double> early, late;
  for (int round = 0; round < kRounds; ++round) {
    time_tokens(m, 100, early);
    time_tokens(m, 900, late);
  }
  ASSERT_EQ(early.size(), static_cast<size_t>(kRounds * kTokens));
  ASSERT_EQ(late.size(), early.size());
  std::printf("a token at position 100: %.2f ms, at 900: %.2f ms\n", median(early) * 1e3,
              median(late) * 1e3);
  EXPECT_LE(median(late), 1.5 * median(early));
}

INSTANTIATE_TEST_SUITE_P(Types, TimePerToken, ::testing::Values(DType::f32, DType::bf16));

}  // namespace
}  // namespace megatron::testing
