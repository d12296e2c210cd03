// Directories of every family with the names and additional tensors of published files.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "training/model_source.h"
#include "training/stored_names.h"
#include "unit/checkpoint/raw_tensors.h"
#include "unit/checkpoint/support.h"
#include "unit/models/family_models.h"

namespace megatron::training {
namespace {

using testing::RawTensor;
using Tensors = std::vector<RawTensor>;

class PublishedNames : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    original_ = testing::family_directory(GetParam());
    tensors_ = testing::read_raw(original_ + "/model.safetensors");
    model_ = models::model_from_directory(original_);
    prefix_ = model_->base_prefix();
    tied_ = model_->tied_output();
    expected_ = values(original_);
  }

  // Values of all parameters and states, in order.
  std::vector<std::vector<double>> values(const std::string& directory) {
    const auto stage =
        load_model(checkpoint::ModelDirectory(directory), model_, runtime_, DType::f64, 0);
    std::vector<std::vector<double>> all;
    for (const parallel::ParameterSpec* tensor : models::tensors_of(*stage))
      all.push_back(to_doubles(tensor->parameter.value));
    return all;
  }

  std::string directory_with(const Tensors& tensors) {
    std::filesystem::copy_file(original_ + "/config.json", folder_ / "config.json",
                               std::filesystem::copy_options::overwrite_existing);
    testing::write_raw(folder_ / "model.safetensors", tensors);
    return folder_.path();
  }
  void expect_same(const Tensors& tensors) {
    EXPECT_EQ(values(directory_with(tensors)), expected_);
  }
  std::string error(const Tensors& tensors) {
    try {
      values(directory_with(tensors));
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }

  template <class Rename>
  Tensors renamed(const Rename& rename) const {
    Tensors all = tensors_;
    for (RawTensor& tensor : all) tensor.name = rename(tensor.name);
    return all;
  }
  Tensors without_prefix() const {
    return renamed([&](const std::string& name) {
      return name.starts_with(prefix_) ? name.substr(prefix_.size()) : name;
    });
  }
  // Includes types that no model has.
  Tensors buffers(const std::string& prefix) const {
    const std::string model(model_->family());
    const std::string mask(4, '\1'), angles(24, '\0');
    if (model == "gpt2")
      return {{prefix + "h.2.attn.bias", "BOOL", "[1,1,2,2]", mask},
              {prefix + "h.0.attn.masked_bias", "F32", "[]", mask}};
    const std::string angle = model == "gpt_neox" ? "layers.1.attention.rotary_emb."
                              : model == "falcon" ? "h.1.self_attention.rotary_emb."
                                                  : "layers.1.self_attn.rotary_emb.";
    Tensors all;
    if (model == "gpt_neox")
      all = {{prefix + "layers.2.attention.bias", "U8", "[1,1,2,2]", mask},
             {prefix + "layers.10.attention.masked_bias", "F16", "[2]", mask}};
    for (const std::string& place : {angle, std::string("rotary_emb.")}) {
      all.push_back({prefix + place + "inv_freq", "U64", "[3]", angles});
      all.push_back({prefix + place + "cos_cached", "F8_E4M3", "[1,1,4,6]", angles});
      all.push_back({prefix + place + "sin_cached", "F32", "[1,1,1,6]", angles});
    }
    return all;
  }
  Tensors joined(Tensors all, const Tensors& more) const {
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  const checkpoint::TemporaryDirectory folder_;
  Runtime runtime_{{DeviceKind::reference, 0}, 1};
  std::string original_, prefix_;
  Tensors tensors_;
  models::Model model_;
  std::optional<models::ModelDefinition::TiedOutput> tied_;
  std::vector<std::vector<double>> expected_;
};

TEST_P(PublishedNames, LoadOfABaseModelSavedAlone) {
  ASSERT_NE(prefix_, "");
  expect_same(joined(without_prefix(), buffers("")));
}

TEST_P(PublishedNames, LoadBehindAPrefixTooMany) {
  expect_same(joined(renamed([&](const std::string& name) { return prefix_ + name; }),
                     buffers(prefix_ + prefix_)));
}

// The base model is part of a larger model or comes from another program, and its head has a
// separate prefix.
TEST_P(PublishedNames, LoadBehindForeignPrefixes) {
  for (const std::string foreign : {"language_model.model.", "model.language_model.",
                                    "model.text_model.", "transformer.", "decoder.", "llm."}) {
    const bool outer = foreign.ends_with("." + prefix_);
    const std::string before = foreign.substr(0, outer ? foreign.size() - prefix_.size() : 0);
    expect_same(joined(renamed([&](const std::string& name) {
                         return name.starts_with(prefix_) ? foreign + name.substr(prefix_.size())
                                                          : before + name;
                       }),
                       buffers(foreign)));
  }
  for (const std::string foreign : {"language_model.", "base_model.model.", "pretrained_model."})
    expect_same(joined(renamed([&](const std::string& name) { return foreign + name; }),
                       buffers(foreign + prefix_)));
}

TEST_P(PublishedNames, LoadNamesWithWrappers) {
  const auto with_inner = [](std::string name, const std::string& wrapper) {
    for (const std::string layers : {"layers.", ".h."})
      if (const size_t at = name.find(layers); at != name.npos)
        return name.insert(name.find('.', at + layers.size()) + 1, wrapper);
    return name;
  };
  for (const std::string wrapper :
       {"module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."}) {
    expect_same(renamed([&](const std::string& name) { return wrapper + name; }));
    expect_same(renamed([&](const std::string& name) { return with_inner(name, wrapper); }));
    expect_same(renamed(
        [&](const std::string& name) { return "module." + with_inner("model." + name, wrapper); }));
  }
}

TEST_P(PublishedNames, LoadTheTextModelBesideOtherWeights) {
  Tensors tensors = renamed([](const std::string& name) { return "language_model." + name; });
  tensors.push_back({"vision_tower.layers.0.norm.weight", "F32", "[1]", "0000"});
  EXPECT_NE(error(tensors).find("not in the model: 1 (vision_tower.layers.0.norm.weight)"),
            std::string::npos)
      << error(tensors);
  const std::string directory = directory_with(tensors);
  const auto stage = load_model(checkpoint::ModelDirectory(directory, {.ignore_surplus = true}),
                                model_, runtime_, DType::f64, 0);
  EXPECT_EQ(to_doubles(models::tensors_of(*stage)[0]->parameter.value), expected_[0]);
}

TEST_P(PublishedNames, LeaveOutBuffersAndNothingElse) {
  expect_same(joined(tensors_, buffers(prefix_)));
  const std::string angles(24, '\0');
  for (const std::string name : {"rotary_emb_local.inv_freq", "rotary_emb.long_inv_freq",
                                 "layers.0.self_attn.inv_freq", "freqs_cis", "causal_mask"})
    expect_same(joined(tensors_, {{prefix_ + name, "F32", "[6]", angles}}));
  Tensors surplus = buffers(prefix_);
  surplus.push_back({prefix_ + "layers.0.self_attn.rotary.weight", "F32", "[1]", "0000"});
  EXPECT_NE(
      error(joined(tensors_, surplus))
          .find("not in the model: 1 (" + surplus.back().name +
                "); if the model does not need them, skip them with --ignore-surplus-tensors"),
      std::string::npos)
      << error(joined(tensors_, surplus));
  const std::string directory = directory_with(joined(tensors_, surplus));
  const auto stage = load_model(checkpoint::ModelDirectory(directory, {.ignore_surplus = true}),
                                model_, runtime_, DType::f64, 0);
  EXPECT_EQ(to_doubles(models::tensors_of(*stage)[0]->parameter.value), expected_[0]);
}

TEST_P(PublishedNames, LoadAHeadThatStandsForTheEmbedding) {
  const std::string head = tied_ ? tied_->output : whole_model(model_, DType::f64).head;
  if (!tied_) {
    Tensors base = without_prefix();
    std::erase_if(base, [&](const RawTensor& tensor) { return tensor.name == head; });
    EXPECT_NE(error(base).find("has no " + head + ": it was saved without the model's head"),
              std::string::npos)
        << error(base);
    return;
  }
  const auto to_head = [&](const std::string& name) {
    if (name == tied_->table) return head;
    return name.starts_with(prefix_) ? name.substr(prefix_.size()) : name;
  };
  expect_same(renamed([&](const std::string& name) { return name == tied_->table ? head : name; }));
  expect_same(renamed(to_head));
}

class PublishedTiedNames : public PublishedNames {};

// Copies of a tied matrix are compared by value, whatever their types.
TEST_P(PublishedTiedNames, LoadCopiesOfTwoTypes) {
  Tensors tensors = tensors_;
  RawTensor head = *std::ranges::find(tensors_, tied_->table, &RawTensor::name);
  ASSERT_EQ(head.dtype, "F32");
  std::string wide;
  for (size_t at = 0; at < head.bytes.size(); at += sizeof(float)) {
    float value = 0;
    std::memcpy(&value, head.bytes.data() + at, sizeof value);
    const double exact = value;
    wide.append(reinterpret_cast<const char*>(&exact), sizeof exact);
  }
  tensors.push_back({tied_->output, "F64", head.shape, wide});
  expect_same(tensors);
  ++tensors.back().bytes[0];
  EXPECT_NE(error(tensors).find("which differ"), std::string::npos) << error(tensors);
}

INSTANTIATE_TEST_SUITE_P(Families, PublishedNames,
                         ::testing::ValuesIn(testing::kFamilyDirectories));

std::vector<const char*> tied_families() {
  std::vector<const char*> tied;
  for (const char* family : testing::kFamilyDirectories)
    if (models::model_from_directory(testing::family_directory(family))->tied_output())
      tied.push_back(family);
  return tied;
}
INSTANTIATE_TEST_SUITE_P(Families, PublishedTiedNames, ::testing::ValuesIn(tied_families()));

class PublishedBlocks : public PublishedNames {};

// Files may repeat a shared block and its adapters for each layer that uses it.
TEST_P(PublishedBlocks, CopiesAreEqualOrRefused) {
  Tensors tensors = tensors_;
  const std::string first = "model.layers.1.shared_transformer.",
                    other = "model.layers.4.shared_transformer.";
  for (const RawTensor& tensor : tensors_) {
    if (!tensor.name.starts_with(first)) continue;
    tensors.push_back(tensor);
    tensors.back().name = other + tensor.name.substr(first.size());
  }
  ASSERT_GT(tensors.size(), tensors_.size() + 10);
  expect_same(tensors);
  ++tensors.back().bytes[0];
  const std::string text = error(tensors);
  for (const std::string& part : {tensors.back().name, std::string("num_mem_blocks")})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  tensors.back().name = "model.layers.2.shared_transformer.self_attn.v_proj.weight";
  EXPECT_NE(error(tensors).find("not in the model"), std::string::npos) << error(tensors);
}

INSTANTIATE_TEST_SUITE_P(Families, PublishedBlocks, ::testing::Values("zamba2"));

// If a config.json omits such a key, its default means a model without these tensors.
TEST(PublishedTensors, AreLeftOutByKeysThatConfigJsonLacks) {
  const std::string original = testing::family_directory("glm4_moe");
  const checkpoint::TemporaryDirectory folder;
  const Tensors tensors = testing::read_raw(original + "/model.safetensors");
  const auto error_with = [&](const Json& config, const Tensors& stored) -> std::string {
    write_file(folder / "config.json", config.dump());
    testing::write_raw(folder / "model.safetensors", stored);
    Runtime runtime({DeviceKind::reference, 0}, 1);
    try {
      load_model(checkpoint::ModelDirectory(folder.path()),
                 models::model_from_directory(folder.path()), runtime, DType::f64, 0);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  const Json given = Json::read(original + "/config.json");
  for (const char* key : {"attention_bias", "use_qk_norm"}) {
    Json config = given;
    std::erase_if(config.as_object(), [&](const Json::Member& m) { return m.first == key; });
    EXPECT_EQ(error_with(config, tensors), "");
    config.set(key, false);
    EXPECT_NE(error_with(config, tensors).find("not in the model"), std::string::npos) << key;
  }
  Tensors more = tensors;
  more.push_back({"model.layers.0.mlp.up_proj.bias", "F32", "[1]", "0000"});
  EXPECT_NE(error_with(given, more).find("not in the model: 1"), std::string::npos);
}

// A module's state may be absent, but a present one must not be overlooked.
TEST(StoredNames, FindAStateWithoutItsPrefix) {
  const std::string original = testing::family_directory("glm4_moe");
  const checkpoint::TemporaryDirectory folder;
  std::filesystem::copy_file(original + "/config.json", folder / "config.json");
  Tensors tensors = testing::read_raw(original + "/model.safetensors");
  for (RawTensor& tensor : tensors)
    if (tensor.name.starts_with("model.")) tensor.name = tensor.name.substr(6);
  testing::write_raw(folder / "model.safetensors", tensors);
  const WholeModel whole = whole_model(models::model_from_directory(original), DType::f32);
  ASSERT_FALSE(whole.states.empty());
  const checkpoint::ModelDirectory directory(folder.path());
  EXPECT_EQ(absent_states(whole, directory), std::vector<std::string>());
  EXPECT_EQ(StoredNames(whole, directory).of("model.norm.weight"), "norm.weight");
}

}  // namespace
}  // namespace megatron::training
