// What an adapter's directory has of the base model: modules that are saved whole, and biases.
#include <gtest/gtest.h>

#include <algorithm>

#include "training/model_source.h"
#include "training/stored_names.h"
#include "unit/checkpoint/support.h"
#include "unit/training/adapter_files.h"

namespace megatron::training::adapter_names_test {
namespace {

using megatron::testing::adapted;
using megatron::testing::write_adapter;

// Names of the tensors in a checkpoint of the model.
std::vector<std::string> saved_names(const models::Model& model) {
  std::vector<std::string> names;
  for (const checkpoint::WholeTensor& tensor : whole_model(model, DType::f32).saved)
    names.push_back(tensor.name);
  std::ranges::sort(names);
  return names;
}

TEST(AdapterNames, OfSavedModulesReplaceTheBases) {
  const models::Model model =
      adapted("llama", {.rank = 2,
                        .targets = {.names = {"1.self_attn.q_proj"}},
                        .modules_to_save = {"lm_head", "2.input_layernorm"}});
  EXPECT_EQ(
      saved_names(model),
      (std::vector<std::string>{"base_model.model.lm_head.weight",
                                "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight",
                                "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight",
                                "base_model.model.model.layers.2.input_layernorm.weight"}));
  const checkpoint::TemporaryDirectory folder;
  write_adapter(folder.path(), "llama", model);
  const checkpoint::ModelDirectory directory(folder.path());
  const WholeModel whole = whole_model(model, DType::f32);
  const StoredNames names(whole, directory);
  EXPECT_EQ(names.of("lm_head.weight"), "base_model.model.lm_head.weight");
  EXPECT_EQ(names.of("model.layers.2.input_layernorm.weight"),
            "base_model.model.model.layers.2.input_layernorm.weight");
  EXPECT_EQ(names.of("model.layers.1.input_layernorm.weight"),
            "model.layers.1.input_layernorm.weight");
  std::vector<std::string> left_out;
  for (const StoredNames::LeftOut& one : names.left_out()) {
    left_out.push_back(one.name);
    EXPECT_EQ(one.reason, "is replaced by base_model.model." + one.name);
  }
  std::ranges::sort(left_out);
  EXPECT_EQ(left_out,
            (std::vector<std::string>{"lm_head.weight", "model.layers.2.input_layernorm.weight"}));
  Runtime runtime({DeviceKind::reference, 0}, 1);
  const auto stage = load_model(directory, model, runtime, DType::f32, 0);
  for (const parallel::ParameterSpec* placed : stage->parameters()) {
    const std::vector<double> values = to_doubles(placed->parameter.value);
    const bool zero = std::ranges::all_of(values, [](double value) { return value == 0; });
    EXPECT_EQ(zero, placed->parameter.trainable) << placed->parameter.name;
  }
}

// A bias of an adapted module lies within it, others beside.
TEST(AdapterNames, OfTrainedBiases) {
  const std::string inside = "base_model.model.transformer.h.1.attn.c_attn.base_layer.bias",
                    beside = "base_model.model.transformer.h.1.mlp.c_fc.bias";
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  const auto with_bias = [](models::LoraBias bias) {
    return adapted(
        "gpt2",
        {.rank = 2, .fan_in_fan_out = true, .bias = bias, .targets = {.names = {"c_attn"}}});
  };
  const std::vector<std::string> none = saved_names(with_bias(models::LoraBias::none)),
                                 own = saved_names(with_bias(models::LoraBias::lora_only)),
                                 all = saved_names(with_bias(models::LoraBias::all));
  EXPECT_FALSE(has(none, inside) || has(none, beside));
  EXPECT_TRUE(has(own, inside) && !has(own, beside));
  EXPECT_TRUE(has(all, inside) && has(all, beside));
  const models::Model model = with_bias(models::LoraBias::all);
  const checkpoint::TemporaryDirectory folder;
  write_adapter(folder.path(), "gpt2", model);
  const checkpoint::ModelDirectory directory(folder.path());
  const StoredNames names(whole_model(model, DType::f32), directory);
  EXPECT_EQ(names.of("transformer.h.1.attn.c_attn.bias"), inside);
  EXPECT_EQ(names.of("transformer.h.1.mlp.c_fc.bias"), beside);
  EXPECT_EQ(names.of("transformer.h.1.mlp.c_fc.weight"), "transformer.h.1.mlp.c_fc.weight");
}

// The table of a model with a tied head is both.
TEST(AdapterNames, OfASavedTableThatIsTheHead) {
  const models::Model model =
      adapted("llama_tied",
              {.rank = 2, .targets = {.names = {"v_proj"}}, .modules_to_save = {"embed_tokens"}});
  const checkpoint::TemporaryDirectory folder;
  write_adapter(folder.path(), "llama_tied", model);
  const checkpoint::ModelDirectory directory(folder.path());
  const StoredNames names(whole_model(model, DType::f32), directory);
  EXPECT_EQ(names.of("model.embed_tokens.weight"), "base_model.model.model.embed_tokens.weight");
}

}  // namespace
}  // namespace megatron::training::adapter_names_test
