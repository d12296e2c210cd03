// Published GLM directories have a layer for multi-token prediction after the last layer; it is
// ignored.
#include <gtest/gtest.h>

#include "golden/cli/process.h"
#include "golden/selftest/support.h"

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;

class PredictionLayer : public ::testing::Test {
 protected:
  // Copies glm4_moe, which has layers 0 to 2, and adds tensors.
  std::string with_tensors(const std::string& name, const Words& tensors) {
    const std::string model = place_ / name;
    fs::copy(vectors("hf/glm4_moe"), model);
    change_tensors(model + "/model.safetensors", [&](Values& values) {
      for (const std::string& tensor : tensors) values[tensor] = {1, 2};
    });
    return model;
  }
  Outcome eval(const std::string& model) {
    return place_.run({"eval", "--load", model, "--mock-data", "--seq-length", "16",
                       "--eval-samples", "4", "--json"});
  }

  Workplace place_;
};

TEST_F(PredictionLayer, IsLeftOutWithOneLine) {
  Words tensors = {"model.layers.3.eh_proj.weight", "model.layers.3.shared_head.head.weight"};
  for (int expert = 0; expert < 8; ++expert)
    tensors.push_back("model.layers.3.mlp.experts." + std::to_string(expert) + ".up_proj.weight");
  const Outcome whole = eval(vectors("hf/glm4_moe")), more = eval(with_tensors("more", tensors));
  ASSERT_EQ(whole.code, 0) << whole.err;
  ASSERT_EQ(more.code, 0) << more.err;
  const std::string text = more.out + more.err,
                    line =
                        "10 tensors of layers for multi-token prediction, which are ignored: 1 "
                        "(model.layers.3)\n";
  EXPECT_NE(text.find(line), std::string::npos) << text;
  EXPECT_EQ(text.find("model.layers.3"), text.rfind("model.layers.3")) << text;
  EXPECT_EQ(Json::parse(more.out)["loss"], Json::parse(whole.out)["loss"]);
}

// A layer without that projection is an ordinary one that config.json does not count.
TEST_F(PredictionLayer, HasTheProjectionOfOne) {
  const Outcome third = eval(with_tensors("third", {"model.layers.3.input_layernorm.weight"}));
  EXPECT_EQ(third.code, 2);
  EXPECT_NE(third.err.find("model.layers.3.input_layernorm.weight"), std::string::npos)
      << third.err;
}

TEST_F(PredictionLayer, IsOneAndOfItsFamilyOnly) {
  const Outcome second = eval(with_tensors("second", {"model.layers.4.eh_proj.weight"}));
  EXPECT_EQ(second.code, 2);
  EXPECT_NE(second.err.find("model.layers.4.eh_proj.weight"), std::string::npos) << second.err;
  const std::string other = place_ / "other";
  fs::copy(vectors("hf/qwen3_moe"), other);
  change_tensors(other + "/model.safetensors",
                 [](Values& values) { values["model.layers.4.eh_proj.weight"] = {1}; });
  EXPECT_EQ(eval(other).code, 2);
}

}  // namespace
}  // namespace megatron::testing
