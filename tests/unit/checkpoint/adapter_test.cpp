// Directories of adapters: which model they belong to, and what cannot be one.
#include <gtest/gtest.h>

#include "checkpoint/model_directory.h"
#include "checkpoint/safetensors.h"
#include "support.h"

namespace megatron::checkpoint::adapter_test {
namespace {

using megatron::testing::expect_contains;

const std::string kA = "base_model.model.layer.lora_A.weight",
                  kB = "base_model.model.layer.lora_B.weight";

class AdapterDirectory : public ::testing::Test {
 protected:
  AdapterDirectory() {
    for (const char* folder : {"base", "adapter"})
      std::filesystem::create_directory(folder_ / folder);
    write_file(base_ + "/config.json", R"({"model_type": "x"})");
    write_tensors(base_ + "/model.safetensors", {{"layer.weight", {3, 2}}, {"other.weight", {2}}});
    configure(R"({"base_model_name_or_path": "../base", "r": 1})");
    write_tensors(adapter_ + "/adapter_model.safetensors", {{kA, {1, 2}}, {kB, {3, 1}}});
  }

  // Every byte of a file's tensors is the number of its tensors.
  static void write_tensors(const std::string& path,
                            const std::vector<std::pair<std::string, Shape>>& shapes) {
    std::vector<TensorToWrite> tensors;
    for (const auto& [name, shape] : shapes)
      tensors.push_back({name, DType::f32, shape, [n = shapes.size()](std::span<std::byte> out) {
                           std::ranges::fill(out, static_cast<std::byte>(n));
                         }});
    write_safetensors(path, tensors, {});
  }
  void configure(const std::string& json) { write_file(adapter_ + "/adapter_config.json", json); }
  std::string error(const ReadingOptions& options = {}) const {
    return error_of([&] { const ModelDirectory directory(adapter_, options); });
  }

  const TemporaryDirectory folder_;
  const std::string base_ = folder_ / "base", adapter_ = folder_ / "adapter";
};

TEST_F(AdapterDirectory, StandsForTheWholeModel) {
  ASSERT_TRUE(is_adapter(adapter_));
  EXPECT_FALSE(is_adapter(base_));
  const ModelDirectory directory(adapter_);
  EXPECT_TRUE(directory.is_adapter());
  EXPECT_EQ(directory.path(), adapter_);
  EXPECT_TRUE(std::filesystem::equivalent(directory.base_path(), base_));
  EXPECT_EQ(directory.config()["model_type"].as_string(), "x");
  EXPECT_EQ(directory.config()[kAdapterConfig]["r"].as_integer(), 1);
  EXPECT_EQ(directory.config_file(), kAdapterConfig);
  EXPECT_EQ(directory.weight_files(), std::vector<std::string>{"adapter_model.safetensors"});
  EXPECT_EQ(directory.tensor_names(),
            (std::vector<std::string>{"layer.weight", "other.weight", kA, kB}));
  EXPECT_EQ(directory.bytes(kB).size(), 12u);
  EXPECT_EQ(directory.shard_map().find(kA)->second, "adapter_model.safetensors");
  EXPECT_EQ(directory.shard_map().find("layer.weight")->second, "model.safetensors");
}

TEST_F(AdapterDirectory, TakesTheBaseThatItIsGiven) {
  std::filesystem::rename(base_, folder_ / "moved");
  expect_contains(error(), {adapter_, "names '../base' as its base model", "--model", "--adapter"});
  const ModelDirectory directory(adapter_, {.base = folder_ / "moved"});
  EXPECT_EQ(directory.base_path(), folder_ / "moved");
  EXPECT_EQ(directory.tensor_names().size(), 4u);
}

TEST_F(AdapterDirectory, NeedsABaseThatIsAModel) {
  for (const char* json :
       {R"({})", R"({"base_model_name_or_path": null})", R"({"base_model_name_or_path": ""})",
        R"({"base_model_name_or_path": 3})"}) {
    configure(json);
    expect_contains(error(), {adapter_, "does not name its base model", "--model"});
  }
  configure(R"(["base_model_name_or_path"])");
  expect_contains(error(), {"adapter_config.json' is not a JSON object"});
  configure(R"({"base_model_name_or_path": "../adapter"})");
  expect_contains(error(), {"adapter/../adapter'", "which is an adapter itself", "merge-adapter"});
  configure(R"({"base_model_name_or_path": "../base"})");
  std::filesystem::remove(base_ + "/model.safetensors");
  expect_contains(error(), {"base' has no weights"});
  std::filesystem::remove(base_ + "/config.json");
  expect_contains(error(), {"base' has no config.json"});
}

TEST_F(AdapterDirectory, NeedsBothOfItsFiles) {
  const std::string weights = adapter_ + "/adapter_model.safetensors";
  std::filesystem::rename(weights, folder_ / "weights");
  EXPECT_FALSE(is_adapter(adapter_));
  expect_contains(error(), {adapter_,
                            "adapter_config.json, but neither adapter_model.safetensors "
                            "nor adapter_model.bin"});
  std::filesystem::rename(folder_ / "weights", weights);
  std::filesystem::remove(adapter_ + "/adapter_config.json");
  EXPECT_FALSE(is_adapter(adapter_));
  expect_contains(error(), {adapter_, "has no config.json"});
  expect_contains(error({.base = base_}),
                  {adapter_, "no adapter_config.json", "not an adapter", base_});
}

TEST_F(AdapterDirectory, OfAWholeModelIsThatModel) {
  write_file(adapter_ + "/config.json", R"({"model_type": "merged"})");
  EXPECT_TRUE(is_adapter(adapter_)) << "a configuration alone is no model";
  write_tensors(adapter_ + "/model.safetensors", {{"layer.weight", {3, 2}}});
  EXPECT_FALSE(is_adapter(adapter_));
  const ModelDirectory directory(adapter_);
  EXPECT_FALSE(directory.is_adapter());
  EXPECT_EQ(directory.config()["model_type"].as_string(), "merged");
  EXPECT_EQ(directory.tensor_names(), std::vector<std::string>{"layer.weight"});
}

TEST_F(AdapterDirectory, HasOnlyNamesOfAdapters) {
  const std::string weights = adapter_ + "/adapter_model.safetensors";
  write_tensors(weights, {{kA, {1, 2}}, {"layer.lora_B.weight", {3, 1}}});
  expect_contains(error(), {"'layer.lora_B.weight'", "begin with base_model.model."});
  write_file(weights, "not a file of tensors");
  expect_contains(error(), {"adapter_model.safetensors"});
}

// The tensors of an adapter for another model are listed, those that lack as well.
TEST_F(AdapterDirectory, TensorsThatDoNotFitAreListed) {
  write_tensors(adapter_ + "/adapter_model.safetensors",
                {{kA, {1, 4}}, {"base_model.model.absent.lora_A.weight", {1, 2}}});
  Model model;
  for (const auto& [name, shape] : {std::pair{std::string("layer.weight"), Shape{3, 2}},
                                    {std::string("other.weight"), Shape{2}},
                                    {kA, Shape{1, 2}},
                                    {kB, Shape{3, 1}}})
    model.add(name, shape, DType::f32);
  const ModelDirectory directory(adapter_);
  const std::string text = error_of([&] { load(directory, model.parameters()); });
  expect_contains(text, {adapter_, kA, "[1, 4] in the file", "[1, 2] in the model", kB,
                         "base_model.model.absent"});
}

}  // namespace
}  // namespace megatron::checkpoint::adapter_test
