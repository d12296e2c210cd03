// Megatron-LM's data sets of sentences, and that a changed value in them is found.
#include "selftest/verify_bert.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/files.h"
#include "base/json.h"
#include "sentence_cases.h"

namespace megatron::selftest {
namespace {

using megatron::testing::vectors;

TEST(BertVectors, AreEqualInEveryField) {
  const std::string directory = vectors("bert_dataset");
  ASSERT_TRUE(has_bert_dataset(directory));
  const Report report = verify_bert_dataset(directory);
  EXPECT_TRUE(report.passed()) << report.text();
  EXPECT_GT(report.compared(), 2300);
}

TEST(BertVectors, AreToldFromOtherDataSets) {
  EXPECT_FALSE(has_bert_dataset(vectors("gpt_dataset")));
  EXPECT_FALSE(has_bert_dataset(vectors("blend")));
}

std::string failure_after(const std::string& file, const std::function<void(Json&)>& change) {
  return first_failure_after(vectors("bert_dataset"), file, change, verify_bert_dataset);
}
std::string failure_of_sample(const std::function<void(Json&)>& change) {
  return failure_after("cases/script_defaults/case.json",
                       [&](Json& json) { change(first_sample(json, "valid")); });
}

TEST(BertVectors, AChangedElementIsNamed) {
  for (const std::string field : {"text", "types", "labels", "padding_mask", "loss_mask"}) {
    const std::string failure = failure_of_sample([&](Json& sample) {
      Json values = sample[field];
      values.as_array()[4] = 99;
      sample.set(field, values);
    });
    EXPECT_TRUE(
        failure.starts_with("samples of script_defaults valid 0 " + field + ": element 4 is "))
        << failure;
    EXPECT_TRUE(failure.ends_with(", expected 99")) << failure;
  }
  EXPECT_NE(failure_of_sample([](Json& sample) {
              sample.set("truncated", 9);
            }).find("valid 0 truncated: is "),
            std::string::npos);
}

TEST(BertVectors, AFieldMoreOrLessIsNamed) {
  EXPECT_NE(failure_of_sample([](Json& sample) {
              sample.set("position", 1);
            }).find("valid 0 position: no field of a sample"),
            std::string::npos);
  const std::string missing = failure_of_sample([](Json& sample) {
    std::erase_if(sample.as_object(), [](const Json::Member& m) { return m.first == "labels"; });
  });
  EXPECT_NE(missing.find("valid 0 labels: is missing"), std::string::npos) << missing;
}

TEST(BertVectors, ChangedMappingsDrawsAndRefusalsAreNamed) {
  const std::string seed =
      failure_after("cases/no_head/case.json", [](Json& json) { json.set("random_seed", 77); });
  EXPECT_TRUE(seed.starts_with("mappings of no_head train")) << seed;
  const std::string bare = failure_after("build_mapping.json", [](Json& json) {
    Json mappings = json["mapping"];
    mappings.as_array()[2].set("seed", 5);
    json.set("mapping", mappings);
  });
  EXPECT_TRUE(bare.starts_with("mappings of build_mapping.json random2: element ")) << bare;
  const std::string draws = failure_after("random_state.json", [](Json& json) {
    json.as_array()[1].set("geometric_next_random", "0x1p-1");
  });
  EXPECT_TRUE(draws.starts_with("random draws of geometric_next_random of seed 1")) << draws;
  const std::string refused = failure_after("cases/error_probability_1/case.json", [](Json& json) {
    json.set("masking_probability", 0.5);
  });
  EXPECT_TRUE(refused.starts_with("refusals of error_probability_1 request: accepted")) << refused;
}

}  // namespace
}  // namespace megatron::selftest
