// `megatron quantize`: weights in FP8 with scales of blocks, read back against their definition.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/low_precision.h"
#include "checkpoint/model_directory.h"
#include "golden/cli/process.h"
#include "golden/selftest/support.h"
#include "tensor/element_types.h"
#include "text.h"

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;
using checkpoint::ModelDirectory;

std::vector<float> values_of(const ModelDirectory& directory, const std::string& name) {
  const checkpoint::TensorInfo& info = *directory.find(name);
  const std::vector<std::byte> bytes = directory.tensors().read(name, 0, info.shape.elements());
  std::vector<float> values(static_cast<size_t>(info.shape.elements()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = info.dtype == DType::f32
                    ? reinterpret_cast<const float*>(bytes.data())[i]
                    : static_cast<float>(reinterpret_cast<const bf16*>(bytes.data())[i]);
  return values;
}

// The definition: the largest element of a block of 128 x 128 goes to (224, 448].
std::vector<float> quantised(const std::vector<float>& w, int64_t rows, int64_t columns) {
  std::vector<float> q = w;
  for (int64_t i = 0; i < rows; i += 128)
    for (int64_t j = 0; j < columns; j += 128) {
      const auto for_block = [&](auto f) {
        for (int64_t r = i; r < std::min(i + 128, rows); ++r)
          for (int64_t c = j; c < std::min(j + 128, columns); ++c)
            f(static_cast<size_t>(r * columns + c));
      };
      float most = 0;
      for_block([&](size_t at) { most = std::max(most, std::abs(w[at])); });
      const float scale = most == 0 ? 1 : std::exp2(std::floor(std::log2(448 / most)));
      for_block([&](size_t at) {
        q[at] = decode(LowFormat::e4m3, encode(LowFormat::e4m3, w[at] * scale)) / scale;
      });
    }
  return q;
}

class Quantize : public ::testing::Test {
 protected:
  Outcome quantize(const std::string& model, const std::string& save) {
    return place_.run({"quantize", "--model", model, "--save", save});
  }
  // Returns the number of quantised tensors.
  int compare(const ModelDirectory& original, const ModelDirectory& found) {
    int count = 0;
    const auto names = original.tensor_names();
    EXPECT_EQ(names.size(), found.tensor_names().size());
    for (const std::string& name : names) {
      const checkpoint::TensorInfo& info = *original.find(name);
      const std::vector<float> before = values_of(original, name), after = values_of(found, name);
      if (found.tensors().packed(name) == nullptr) {
        EXPECT_EQ(before, after) << name;
        continue;
      }
      ++count;
      EXPECT_EQ(after, quantised(before, info.shape[0], info.shape[1])) << name;
    }
    return count;
  }

  Workplace place_;
};

TEST_F(Quantize, WritesLinearLayersInBlocks) {
  for (const auto& [model, tensors] : {std::pair("llama", 21),
                                       {"llama_sharded", 21},
                                       {"qwen3_moe", 0},
                                       {"deepseek_v3", 0},
                                       {"mamba2", 0}}) {
    fs::remove_all(place_ / "out");
    const std::string path = vectors(std::string("hf/") + model);
    const Outcome outcome = quantize(path, "out");
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const ModelDirectory original(path), found(place_ / "out");
    const int count = compare(original, found);
    EXPECT_GT(count, 2) << model;
    if (tensors > 0) {
      EXPECT_EQ(count, tensors) << model;
    }
    const Json config = Json::read(place_ / "out/config.json");
    EXPECT_EQ(config["quantization_config"]["quant_method"], Json("fp8"));
    EXPECT_EQ(config["model_type"], original.config()["model_type"]);
    EXPECT_EQ(found.tensors().packed("lm_head.weight"), nullptr);
    Json::Array kept = config["quantization_config"]["modules_to_not_convert"].as_array();
    for (const Json& module : kept) {
      const std::string name = module.as_string() + ".weight";
      EXPECT_EQ(found.tensors().packed(name), nullptr) << name;
      EXPECT_EQ(found.find(name)->shape.rank(), 2) << name;
    }
    EXPECT_NE(std::ranges::find(kept, Json("lm_head")), kept.end());
    for (const std::string& name : found.tensor_names()) {
      const bool linear = has(name, "_proj") && name.ends_with(".weight");
      EXPECT_EQ(found.tensors().packed(name) != nullptr, linear) << model << " " << name;
    }
  }
}

TEST_F(Quantize, RefusesByName) {
  const auto refused = [&](const std::string& model,
                           std::initializer_list<std::string_view> parts) {
    const Outcome outcome = quantize(model, "out");
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    expect_contains(outcome.err, parts);
    EXPECT_FALSE(fs::exists(place_ / "out") || fs::exists(place_ / "out.tmp"));
  };
  refused(vectors("hf/gpt2"), {"c_attn.weight' is stored transposed", "a gpt2"});
  refused(vectors("hf/gpt_oss"), {"has several matrices", "a gpt_oss"});
  ASSERT_EQ(quantize(vectors("hf/llama"), "once").code, 0);
  refused("once", {"is quantized already: tensor '"});
  fs::copy(vectors("hf/llama_sharded"), place_ / "short", fs::copy_options::recursive);
  fs::remove(place_ / "short/model-00002-of-00004.safetensors");
  refused("short", {"does not have the tensor", "model-00002-of-00004.safetensors"});
  refused("nowhere", {"nowhere"});
  refused(vectors("post_training/lora/dora"), {"adapter"});
}

}  // namespace
}  // namespace megatron::testing
