// Megatron-LM's samples with fill in the middle, and that a changed value in them is found.
#include "selftest/verify_fim_data.h"

#include <gtest/gtest.h>

#include <functional>

#include "selftest/verify_bert.h"
#include "selftest/verify_t5_data.h"
#include "sentence_cases.h"

namespace megatron::selftest {
namespace {

using megatron::testing::vectors;

TEST(FimVectors, AreEqualInEveryField) {
  const std::string directory = vectors("fim_dataset");
  ASSERT_TRUE(has_fim_dataset(directory));
  const Report report = verify_fim_dataset(directory);
  EXPECT_TRUE(report.passed()) << report.text();
  EXPECT_GT(report.compared(), 1000);
}

TEST(FimVectors, AreToldFromOtherDataSets) {
  EXPECT_FALSE(has_fim_dataset(vectors("t5_dataset")));
  EXPECT_FALSE(has_fim_dataset(vectors("gpt_dataset")));
  EXPECT_FALSE(has_bert_dataset(vectors("fim_dataset")));
  EXPECT_FALSE(has_t5_dataset(vectors("fim_dataset")));
}

// change: of the first access of a case, whose tokenizers are next to the data here.
std::string failure_of_access(const std::string& name, const std::function<void(Json&)>& change) {
  const testing::TemporaryDirectory place;
  std::filesystem::create_directories(place / "indexed/preprocess");
  for (const char* tokenizer : {"tokenizer_bpe2k", "tokenizer_bpe2k_bos"})
    std::filesystem::create_directory_symlink(
        vectors(std::string("indexed/preprocess/") + tokenizer),
        place / ("indexed/preprocess/" + std::string(tokenizer)));
  std::filesystem::copy(vectors("fim_dataset"), place / "fim",
                        std::filesystem::copy_options::recursive);
  const std::string file = place / ("fim/cases/" + name + "/case.json");
  Json json = Json::read(file);
  change(member(member(member(json, "splits"), "train"), "accesses").as_array()[0]);
  write_file(file, json.dump());
  const Report report = verify_fim_dataset(place / "fim");
  return report.passed() ? "passed" : report.failures()[0];
}

TEST(FimVectors, AChangedValueIsNamed) {
  const std::string tokens = failure_of_access(
      "rate1_spm", [](Json& access) { member(access, "tokens").as_array()[3] = 99; });
  EXPECT_NE(tokens.find("rate1_spm train access 0 tokens"), std::string::npos) << tokens;
  const std::string mask = failure_of_access(
      "rate1_psm", [](Json& access) { access.set("loss_mask_zeros", Json::Array{7}); });
  EXPECT_NE(mask.find("rate1_psm train access 0 loss_mask_zeros"), std::string::npos) << mask;
  const std::string error =
      failure_of_access("rate1_psm", [](Json& access) { access.set("error", "TypeError"); });
  EXPECT_NE(error.find("is read, expected an error"), std::string::npos) << error;
}

}  // namespace
}  // namespace megatron::selftest
