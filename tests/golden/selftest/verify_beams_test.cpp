// Beam searches of transformers, and that a changed value in them is found.
#include "selftest/verify_beams.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support.h"

namespace megatron::selftest {
namespace {

using megatron::testing::TemporaryDirectory;
using megatron::testing::vectors;

// Every `stride`-th case of the models.
void write_cases(const TemporaryDirectory& directory, const std::vector<std::string>& models,
                 size_t stride) {
  for (const std::string& model : models) {
    const std::string name = model + ".json";
    const Json all = Json::read(vectors("beams/" + name));
    Json::Array cases;
    for (size_t i = 0; i < all["cases"].as_array().size(); i += stride)
      cases.push_back(all["cases"].as_array()[i]);
    std::ofstream(directory / name) << Json(Json::Object{{"cases", std::move(cases)}}).dump();
  }
}

// models: of a set. ranks: tensor-parallel ranks that can share their heads.
void expect_equal(const std::vector<std::string>& models, const std::string& set, int ranks = 2) {
  for (const auto& [tensor, pipeline] : {std::pair{1, 1}, {ranks, 1}, {1, 2}}) {
    VerifyOptions options{.tensor_parallel = tensor, .pipeline_parallel = pipeline};
    if (options.ranks() > 1) options.devices = {DeviceKind::cpu};
    const TemporaryDirectory directory;
    write_cases(directory, models, options.ranks() > 1 ? 13 : 5);  // all combinations of options
    ASSERT_TRUE(has_beams(directory / ""));
    const std::vector<Report> reports = verify_beams(directory / "", vectors(set), options);
    ASSERT_EQ(reports.size(), models.size() * options.devices.size());
    for (const Report& report : reports) {
      EXPECT_TRUE(report.passed()) << report.text();
      EXPECT_GT(report.compared(), options.ranks() > 1 ? 5 * 6 : 13 * 6);
    }
  }
}

TEST(BeamVectors, OfDecodersAreEqualOnEveryDeviceAndLayout) {
  expect_equal({"llama", "qwen3"}, "hf");
}

TEST(BeamVectors, OfEncoderDecodersAreEqualOnEveryDeviceAndLayout) {
  expect_equal({"t5"}, "t5/hf");
  expect_equal({"t5_v1_1"}, "t5/hf", 3);
}

TEST(BeamVectors, AreToldFromOtherFolders) {
  EXPECT_TRUE(has_beams(vectors("beams")));
  for (const std::string other : {"hf/llama", "bert_dataset", "sampling"})
    EXPECT_FALSE(has_beams(vectors(other))) << other;
}

// The failures after a change of the first case.
std::string failures_of_changed(const std::function<void(Json&)>& change) {
  const TemporaryDirectory directory;
  Json json = Json::read(vectors("beams/llama.json"));
  Json one = json["cases"].as_array()[0];
  change(one);
  std::ofstream(directory / "llama.json")
      << Json(Json::Object{{"cases", Json::Array{std::move(one)}}}).dump();
  const std::vector<Report> reports =
      verify_beams(directory / "", vectors("hf"), {.devices = {DeviceKind::cpu}});
  std::string all;
  for (const std::string& failure : reports.at(0).failures()) all += failure + "\n";
  return all;
}

TEST(BeamVectors, AChangedValueIsNamed) {
  EXPECT_EQ(failures_of_changed([](Json&) {}), "");
  const auto named = [](const char* what, const std::function<void(Json&)>& change) {
    const std::string failures = failures_of_changed(change);
    EXPECT_NE(failures.find(what), failures.npos) << what << ": " << failures;
  };
  named("steps", [](Json& one) { one.set("steps", one["steps"].as_integer() + 1); });
  const auto change_text = [](const char* key, const Json& value) {
    return [key, value](Json& one) {
      Json result = one["result"];
      result.as_array()[0].as_array()[1].set(key, value);
      one.set("result", std::move(result));
    };
  };
  named("tokens", change_text("tokens", Json::Array{int64_t{1}, int64_t{2}}));
  named("scores", change_text("score", -3.25));
  named("numbers of texts", [](Json& one) { one.set("num_return_sequences", int64_t{1}); });
  named("--max-tokens is 0", [](Json& one) { one.set("max_new_tokens", int64_t{0}); });
}

TEST(BeamVectors, AModelThatIsNotThereIsNamed) {
  const std::vector<Report> reports =
      verify_beams(vectors("beams"), vectors("sampling"), {.devices = {DeviceKind::cpu}});
  ASSERT_EQ(reports.size(), 4);
  for (const Report& report : reports)
    EXPECT_NE(report.text().find("--models"), std::string::npos) << report.text();
}

}  // namespace
}  // namespace megatron::selftest
