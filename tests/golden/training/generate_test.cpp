#include "training/generate.h"

#include <gtest/gtest.h>

#include <array>

#include "base/error.h"
#include "base/philox.h"
#include "golden/training/support.h"

namespace megatron::training {
namespace {

TEST(Sample, TemperatureZeroAndTopOneTakeTheLargest) {
  const std::vector<float> logits = {1, 3, 2, 3};
  for (int64_t position = 0; position < 20; ++position) {
    EXPECT_EQ(sample(logits, {.temperature = 0}, position), 1);
    EXPECT_EQ(sample(logits, {.temperature = 5, .top_k = 1}, position), 1);
  }
}

// Probabilities 1/2, 1/4, 1/8, 1/8 at temperature 1, most likely first: the draw u picks the first
// whose cumulative sum exceeds it.
TEST(Sample, DrawsByHand) {
  const std::vector<float> logits = {std::log(0.125f), std::log(0.5f), std::log(0.125f),
                                     std::log(0.25f)};
  const RandomStream stream(7, "generate");
  for (uint64_t position = 0; position < 200; ++position) {
    const double u = stream.uniform(position);
    const int32_t expected = u < 0.5 ? 1 : u < 0.75 ? 3 : u < 0.875 ? 0 : 2;
    EXPECT_EQ(sample(logits, {.seed = 7}, static_cast<int64_t>(position)), expected) << u;
    // top_k 2: 2/3 and 1/3.
    EXPECT_EQ(sample(logits, {.top_k = 2, .seed = 7}, static_cast<int64_t>(position)),
              u < 2.0 / 3 ? 1 : 3)
        << u;
  }
}

// Temperature 1/2 squares the probabilities: 16, 4, 1, 1 of 22.
TEST(Sample, TemperatureSharpens) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.25f), std::log(0.125f),
                                     std::log(0.125f)};
  std::array<int, 4> counts{};
  for (int64_t position = 0; position < 8000; ++position)
    ++counts[static_cast<size_t>(sample(logits, {.temperature = 0.5}, position))];
  EXPECT_NEAR(counts[0] / 8000.0, 16.0 / 22, 0.03);
  EXPECT_NEAR(counts[1] / 8000.0, 4.0 / 22, 0.03);
  EXPECT_NEAR(counts[2] / 8000.0, 1.0 / 22, 0.03);
}

TEST(Sample, DependsOnSeedAndPositionAlone) {
  const std::vector<float> flat(50, 0.0f);
  int equal_seeds = 0, equal_positions = 0;
  for (int64_t position = 0; position < 200; ++position) {
    const int32_t token = sample(flat, {.seed = 1}, position);
    EXPECT_EQ(sample(flat, {.seed = 1}, position), token);
    equal_seeds += sample(flat, {.seed = 2}, position) == token;
    equal_positions += sample(flat, {.seed = 1}, position + 1) == token;
  }
  EXPECT_LT(equal_seeds, 20);
  EXPECT_LT(equal_positions, 20);
}

// The largest logits are of ids that the tokenizer lacks.
TEST(Sample, StaysBelowTheVocabulary) {
  const std::vector<float> logits = {1, 3, 2, 9, 9};
  EXPECT_EQ(sample(logits, {.temperature = 0, .vocabulary = 3}, 0), 1);
  EXPECT_EQ(sample(logits, {.temperature = 0, .vocabulary = 9}, 0), 3);
  for (int64_t position = 0; position < 200; ++position) {
    EXPECT_LT(sample(logits, {.temperature = 100, .vocabulary = 3}, position), 3);
    EXPECT_LT(sample(logits, {.temperature = 100, .top_k = 4, .vocabulary = 3}, position), 3);
  }
}

TEST(Sample, RefusesBadOptions) {
  EXPECT_THROW(SamplingOptions{.temperature = -1}.check(), Error);
  EXPECT_THROW(SamplingOptions{.temperature = NAN}.check(), Error);
  EXPECT_THROW((SamplingOptions{.top_k = -1}.check()), Error);
}

class Generate : public ::testing::Test {
 protected:
  Generate() : runtime_({DeviceKind::cpu, 0}, 1), model_(shape(), runtime_, DType::f32, 1) {
    model_.initialize(1);
  }

  static models::GptConfig shape() {
    models::GptConfig config = tiny_gpt2().shape.to_config(16);
    config.init_method_std = 0.3;
    config.finalize();
    return config;
  }

  std::vector<int32_t> continued(std::vector<int32_t> tokens, int64_t count,
                                 std::optional<int32_t> end = {}) {
    generate(model_, runtime_, tokens, count, {.seed = 5}, end, {});
    return tokens;
  }

  Runtime runtime_;
  models::GptModel model_;
};

TEST_F(Generate, InTwoPartsAsInOne) {
  EXPECT_EQ(continued(continued({1, 2, 3}, 4), 5), continued({1, 2, 3}, 9));
}

TEST_F(Generate, GoesOnBeyondTheModelsPositions) {
  EXPECT_EQ(continued({1, 2, 3}, 40).size(), 43u);
  EXPECT_EQ(continued(std::vector<int32_t>(60, 4), 2).size(), 62u);
}

TEST_F(Generate, StopsAfterTheEndToken) {
  const auto all = continued({1, 2, 3}, 9);
  const auto cut = continued({1, 2, 3}, 9, all[5]);
  EXPECT_LE(cut.size(), 6u);
  EXPECT_EQ(cut.back(), all[5]);
}

TEST_F(Generate, RefusesAnEmptyPromptAndStrangeTokens) {
  EXPECT_THROW(continued({}, 1), Error);
  EXPECT_THROW(continued({97}, 1), Error);
}

// Logits of the last position by the whole model are those that next_logits computes alone.
TEST_F(Generate, LogitsComeFromTheLastPosition) {
  const auto two = next_logits(model_, runtime_, {1, 2}),
             three = next_logits(model_, runtime_, {1, 2, 3});
  ASSERT_EQ(two.size(), 97u);
  EXPECT_NE(two, three);
  EXPECT_EQ(two, next_logits(model_, runtime_, {1, 2}));
}

}  // namespace
}  // namespace megatron::training
