// Chats, packing and packed rows, compared with TRL and transformers.
#include "selftest/verify_chats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/files.h"
#include "base/json.h"
#include "selftest/verify_rewards.h"
#include "support.h"

namespace megatron::selftest {
namespace {

using megatron::testing::TemporaryDirectory;
using megatron::testing::vectors;

class ChatVectors : public ::testing::TestWithParam<const char*> {};

TEST_P(ChatVectors, HaveTheSameTokensAndMasks) {
  const std::string directory = vectors("post_training/sft/") + GetParam();
  ASSERT_TRUE(has_chats(directory));
  const Report report = verify_chats(directory);
  EXPECT_TRUE(report.passed()) << report.text();
  EXPECT_GT(report.compared(), 250);
}

INSTANTIATE_TEST_SUITE_P(Templates, ChatVectors, ::testing::Values("chatml", "headers", "inst"),
                         [](const auto& info) { return std::string(info.param); });

TEST(ChatVectorsDiffer, AChangedMaskIsFound) {
  const TemporaryDirectory place;
  std::filesystem::copy(vectors("post_training/sft"), place / "sft",
                        std::filesystem::copy_options::recursive);
  const std::string path = place / "sft/chatml/expected.json";
  Json expected = Json::read(path);
  Json& first = expected.as_array()[0];
  Json mask = first["assistant_mask"];
  mask.as_array()[0] = 1;
  first.set("assistant_mask", mask);
  write_file(path, expected.dump());
  const Report report = verify_chats(place / "sft/chatml");
  ASSERT_EQ(report.failures().size(), 1u) << report.text();
  EXPECT_NE(report.failures()[0].find("one_turn"), std::string::npos) << report.failures()[0];
}

// Copies the vectors, changes the first conversation with several answers in expected.json, and
// returns the report on it.
Report with_changed(const std::function<void(Json&)>& change) {
  const TemporaryDirectory place;
  std::filesystem::copy(vectors("post_training/sft"), place / "sft",
                        std::filesystem::copy_options::recursive);
  const std::string path = place / "sft/chatml/expected.json";
  Json expected = Json::read(path);
  for (Json& one : expected.as_array()) {
    if (one["spans"].as_array().size() < 2) continue;
    change(one);
    break;
  }
  write_file(path, expected.dump());
  return verify_chats(place / "sft/chatml");
}

TEST(ChatVectorsDiffer, AMaskShiftedByATokenIsFound) {
  const Report report = with_changed([](Json& one) {
    Json mask = one["assistant_mask"];
    std::ranges::rotate(mask.as_array(), mask.as_array().end() - 1);
    one.set("assistant_mask", mask);
  });
  EXPECT_EQ(report.failures().size(), 1u) << report.text();
}

// The answer of another turn: as if the prefix of the wrong message had been rendered.
TEST(ChatVectorsDiffer, AnAnswerOfAnotherTurnIsFound) {
  const Report report = with_changed([](Json& one) {
    Json spans = one["spans"];
    spans.as_array()[0] = spans.as_array()[1];
    one.set("spans", spans);
  });
  EXPECT_GE(report.failures().size(), 1u) << report.text();
}

// The label of a row's first document is given to the token before it, which belongs to another.
TEST(PackedVectorsDiffer, AFirstTokenThatCountsIsFound) {
  const TemporaryDirectory place;
  std::filesystem::copy(vectors("post_training"), place / "v",
                        std::filesystem::copy_options::recursive);
  const std::string path = place / "v/sft/packed.safetensors";
  std::string bytes = read_file(path);
  const auto header_size = static_cast<size_t>(*reinterpret_cast<const uint64_t*>(bytes.data()));
  const Json header = Json::parse(std::string_view(bytes).substr(8, header_size));
  const auto at = [&](const char* tensor, size_t element) {
    const auto begin =
        static_cast<size_t>(header[tensor]["data_offsets"].as_array()[0].as_integer());
    return reinterpret_cast<int64_t*>(bytes.data() + 8 + header_size + begin) + element;
  };
  size_t second = 1;  // first token of the second document
  while (*at("position_ids", second) != 0) ++second;
  ASSERT_LT(*at("labels", second), 0);
  *at("labels", second) = *at("input_ids", second);
  write_file(path, bytes);
  const Report report = verify_packed(place / "v/sft", {.devices = {DeviceKind::cpu}})[0];
  ASSERT_FALSE(report.passed());
  EXPECT_NE(report.text().find("FAILED: loss"), std::string::npos) << report.text();
}

TEST(PackingVectors, HaveTheSameRows) {
  const Report report = verify_packing(vectors("post_training/sft"));
  EXPECT_TRUE(report.passed()) << report.text();
  EXPECT_EQ(report.compared(), 12);
}

TEST(PackedVectors, HaveTheSameLossesAndGradients) {
  for (const VerifyOptions& options :
       {VerifyOptions{}, VerifyOptions{.tensor_parallel = 2, .sequence_parallel = true},
        VerifyOptions{.devices = {DeviceKind::reference}, .pipeline_parallel = 2}}) {
    for (const Report& report : verify_packed(vectors("post_training/sft"), options)) {
      EXPECT_TRUE(report.passed()) << report.text();
      EXPECT_EQ(report.compared(), 45);
    }
  }
}

TEST(RewardVectors, HaveTheSameRewardsLossesAndGradients) {
  for (const VerifyOptions& options :
       {VerifyOptions{}, VerifyOptions{.tensor_parallel = 2, .sequence_parallel = true},
        VerifyOptions{.pipeline_parallel = 2, .data_parallel = 2},
        VerifyOptions{.devices = {DeviceKind::reference}, .context_parallel = 2}}) {
    for (const Report& report : verify_rewards(vectors("post_training/reward"), options)) {
      EXPECT_TRUE(report.passed()) << report.text();
      EXPECT_EQ(report.compared(), 69);
    }
  }
}

TEST(RewardVectors, AnotherMarginIsFound) {
  const TemporaryDirectory place;
  std::filesystem::copy(vectors("post_training"), place / "v",
                        std::filesystem::copy_options::recursive);
  const std::string path = place / "v/reward/pairs.json";
  std::string pairs = read_file(path);
  pairs.replace(pairs.find("\"margin\": 1.0"), 13, "\"margin\": 2.0");
  write_file(path, pairs);
  const Report report = verify_rewards(place / "v/reward", {.devices = {DeviceKind::cpu}})[0];
  EXPECT_FALSE(report.passed()) << report.text();
}

}  // namespace
}  // namespace megatron::selftest
