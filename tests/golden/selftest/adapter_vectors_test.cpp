// Adapters made by PEFT: the model with the adapter and with the weights merged, and their files
// written again.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/files.h"
#include "checkpoint/model_directory.h"
#include "head_adapters.h"
#include "selftest/verify.h"
#include "support.h"
#include "text.h"

namespace megatron::selftest {
namespace {

using megatron::testing::change_tensors;
using megatron::testing::has;
using megatron::testing::TemporaryDirectory;
using megatron::testing::Values;
using megatron::testing::vectors;

std::string directory_of(const std::string& name) { return vectors("post_training/lora/" + name); }

std::string copy_of(const std::string& name, const TemporaryDirectory& to) {
  std::filesystem::copy(directory_of(name), to / name);
  return to / name;
}

constexpr std::string_view kConv1D = "gpt2_conv1d";

class Adapter : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { directory_ = directory_of(GetParam()); }
  std::string directory_;
};

TEST_P(Adapter, AgreesWithPeft) {
  const checkpoint::SafetensorsFile expected(directory_ + "/expected.safetensors");
  const std::vector<Report> reports = verify(directory_, {});
  ASSERT_EQ(reports.size(), 2u);
  for (const Report& report : reports) {
    EXPECT_TRUE(report.passed()) << report.text();
    // Logits twice, also of the merged model; input_ids and labels are no results.
    EXPECT_EQ(report.compared(), std::ssize(expected.tensors()) - 1) << report.text();
  }
}

TEST_P(Adapter, AgreesHoweverItIsDivided) {
  std::vector<VerifyOptions> layouts = {{.pipeline_parallel = 2, .data_parallel = 2},
                                        {.context_parallel = 2},
                                        {.tensor_parallel = 2, .sequence_parallel = true}};
  if (GetParam() == kConv1D) layouts.pop_back();  // three heads
  const int64_t compared = verify(directory_, {}).at(0).compared();
  for (const VerifyOptions& options : layouts) {
    for (const Report& report : verify(directory_, options)) {
      EXPECT_TRUE(report.passed()) << report.text();
      EXPECT_EQ(report.compared(), compared) << report.text();
    }
  }
}

TEST_P(Adapter, ComesBackByteForByte) {
  const TemporaryDirectory folder;
  const Report report = verify_rewrite(directory_, folder / "out");
  EXPECT_TRUE(report.passed()) << report.text();
  const checkpoint::SafetensorsFile file(directory_ + "/adapter_model.safetensors");
  EXPECT_EQ(report.compared(), std::ssize(file.tensors()) + 2) << report.text();
  EXPECT_EQ(read_file(folder / "out/adapter_config.json") + "\n",
            read_file(directory_ + "/adapter_config.json"));
  EXPECT_EQ(read_file(folder / "out/adapter_model.safetensors"),
            read_file(directory_ + "/adapter_model.safetensors"));
}

INSTANTIATE_TEST_SUITE_P(Vectors, Adapter,
                         ::testing::Values("all_linear_rslora", "dora", "embedding_and_head",
                                           "gpt2_conv1d", "modules_to_save", "patterns", "qv",
                                           "qwen2_bias", "qwen3_tied", "regex_one_layer"),
                         [](const auto& info) { return std::string(info.param); });

TEST(AdapterWithAHead, AgreesWithTheModelThatItMakes) {
  for (const testing::HeadAdapter& c : testing::head_adapters()) {
    SCOPED_TRACE(c.name);
    const TemporaryDirectory folder;
    const testing::HeadAdapterFiles files(c, folder / c.name);
    const std::string adapter = folder / c.name + "/adapter";
    int64_t wanted = 0;
    for (const checkpoint::TensorInfo& tensor :
         checkpoint::SafetensorsFile(adapter + "/expected.safetensors").tensors())
      wanted += tensor.name.find(".") != std::string::npos || tensor.name.ends_with("logits") ||
                tensor.name == "loss";
    for (const VerifyOptions& options :
         {VerifyOptions{}, VerifyOptions{.tensor_parallel = 2, .pipeline_parallel = 2},
          VerifyOptions{.data_parallel = 2, .context_parallel = 2}}) {
      for (const Report& report : verify(adapter, options)) {
        EXPECT_TRUE(report.passed()) << report.text();
        // Hidden states and logits twice, also of the merged model.
        EXPECT_GT(report.compared(), wanted) << report.text();
      }
    }
  }
}

class ChangedAdapter : public ::testing::Test {
 protected:
  // Failures of a copy after `change` has modified the tensors of one of its files.
  std::vector<std::string> failures(const std::string& file,
                                    const std::function<void(Values&)>& change) {
    const TemporaryDirectory folder;
    const std::string adapter = copy_of("qv", folder);
    change_tensors(adapter + file, change);
    return verify(adapter, {.devices = {DeviceKind::cpu},
                            .reading = {.base = vectors("post_training/models/policy")}})
        .at(0)
        .failures();
  }
};

const std::string kQuery = "model.layers.1.self_attn.q_proj";

TEST_F(ChangedAdapter, FailsForAMergedTensorThatDiffers) {
  const std::string name = "merged." + kQuery + ".weight";
  const auto failed = failures("/expected.safetensors", [&](Values& values) {
    for (float& value : values.at(name)) value *= 1 + 3e-6f;
  });
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_TRUE(has(failed[0], name)) << failed[0];
}

TEST_F(ChangedAdapter, FailsForAMergedTensorThatIsMissingOrNew) {
  const auto failed = failures("/expected.safetensors", [&](Values& values) {
    values["merged.model.norm.weight"] = values.at("merged." + kQuery + ".weight");
  });
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_TRUE(has(failed[0], "merged.model.norm.weight")) << failed[0];
}

TEST_F(ChangedAdapter, FailsInAllThatAMatrixActsOn) {
  const auto failed = failures("/adapter_model.safetensors", [&](Values& values) {
    values.at("base_model.model." + kQuery + ".lora_B.weight")[5] += 0.05f;
  });
  for (const std::string part : {"merged weights", "merged model", "logits", "gradients"})
    EXPECT_TRUE(std::ranges::any_of(failed, [&](const auto& text) { return has(text, part); }))
        << part;
}

TEST_F(ChangedAdapter, ThatIsWrittenDifferentlyIsNoticed) {
  const TemporaryDirectory folder;
  const std::string adapter = copy_of("qv", folder), file = adapter + "/adapter_config.json";
  write_file(file, " " + read_file(file));
  const Report report =
      verify_rewrite(adapter, folder / "out", {.base = vectors("post_training/models/policy")});
  ASSERT_EQ(report.failures().size(), 1u) << report.text();
  EXPECT_TRUE(has(report.failures()[0], "adapter_config.json")) << report.text();
}

}  // namespace
}  // namespace megatron::selftest
