// Megatron-LM's data sets for T5, and that a changed value in them is found.
#include "selftest/verify_t5_data.h"

#include <gtest/gtest.h>

#include <functional>
#include <iterator>
#include <set>

#include "selftest/verify_bert.h"
#include "sentence_cases.h"

namespace megatron::selftest {
namespace {

using megatron::testing::vectors;

TEST(T5Vectors, AreEqualInEveryField) {
  const std::string directory = vectors("t5_dataset");
  ASSERT_TRUE(has_t5_dataset(directory));
  const Report report = verify_t5_dataset(directory);
  EXPECT_TRUE(report.passed()) << report.text();
  EXPECT_GT(report.compared(), 3400);
}

TEST(T5Vectors, AreToldFromOtherDataSets) {
  EXPECT_FALSE(has_t5_dataset(vectors("bert_dataset")));
  EXPECT_FALSE(has_t5_dataset(vectors("gpt_dataset")));
  EXPECT_FALSE(has_bert_dataset(vectors("t5_dataset")));
}

std::string failure_of_t5_sample(const std::function<void(Json&)>& change) {
  return first_failure_after(
      vectors("t5_dataset"), "cases/script_defaults/case.json",
      [&](Json& json) { change(first_sample(json, "train")); }, verify_t5_dataset);
}

TEST(T5Vectors, AChangedElementIsNamed) {
  for (const std::string field : {"text_enc", "text_dec", "labels"}) {
    const std::string failure = failure_of_t5_sample([&](Json& sample) {
      Json values = sample[field];
      values.as_array()[1] = 99;
      sample.set(field, values);
    });
    EXPECT_NE(failure.find("script_defaults train 0 " + field), std::string::npos) << failure;
  }
}

// Sentinels in another order than those of their spans.
TEST(T5Vectors, ExchangedSentinelsAreNamed) {
  const std::string failure = failure_of_t5_sample([](Json& sample) {
    std::set<int64_t> ids;
    for (const Json& id : sample["text_enc"].as_array()) ids.insert(id.as_integer());
    const int64_t last = *ids.rbegin(), before = *std::next(ids.rbegin());
    for (const char* field : {"text_enc", "text_dec", "labels"}) {
      Json values = sample[field];
      for (Json& id : values.as_array()) {
        const int64_t own = id.as_integer();
        id = own == last ? before : own == before ? last : own;
      }
      sample.set(field, values);
    }
  });
  EXPECT_NE(failure.find("script_defaults train 0 text_enc"), std::string::npos) << failure;
}

TEST(T5Vectors, AChangedMaskIsNamed) {
  for (const std::string field : {"loss_mask", "enc_mask", "dec_mask"}) {
    const std::string failure = failure_of_t5_sample([&](Json& sample) {
      Json mask = sample[field];
      mask.set("ones", mask["ones"].as_integer() - 1);
      sample.set(field, mask);
    });
    EXPECT_NE(failure.find("script_defaults train 0 " + field), std::string::npos) << failure;
  }
  const std::string failure = failure_of_t5_sample([](Json& sample) {
    Json masks = sample["local_masks"], cross = masks["encoder_decoder"];
    cross.set("masked", cross["masked"].as_integer() + 1);
    masks.set("encoder_decoder", cross);
    sample.set("local_masks", masks);
  });
  EXPECT_NE(failure.find("encoder_decoder: number of masked"), std::string::npos) << failure;
}

}  // namespace
}  // namespace megatron::selftest
