// `megatron merge-adapter`: merged weights against PEFT's, and what it keeps and refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/json.h"
#include "base/tolerances.h"
#include "checkpoint/safetensors.h"
#include "golden/cli/process.h"
#include "golden/selftest/head_adapters.h"
#include "golden/selftest/support.h"
#include "selftest/report.h"
#include "tensor/element_types.h"
#include "text.h"

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;
using checkpoint::SafetensorsFile;

const std::string kCases = vectors("post_training/lora/"),
                  kModels = vectors("post_training/models/");
const std::string kWeights = "/model.safetensors", kAdapterWeights = "/adapter_model.safetensors",
                  kAdapterConfig = "/adapter_config.json";
const std::string kQuery = "model.layers.0.self_attn.q_proj";

class MergeAdapter : public ::testing::Test {
 protected:
  Outcome merge(const std::string& adapter, const Words& more = {}) {
    return place_.run(with({"merge-adapter", "--adapter", adapter, "--save", "out"}, more));
  }
  void refused(const std::string& adapter, std::initializer_list<std::string_view> parts,
               const Words& more = {}) {
    const Outcome outcome = merge(adapter, more);
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    expect_contains(outcome.err, parts);
    EXPECT_FALSE(fs::exists(place_ / "out") || fs::exists(place_ / "out.tmp"));
  }
  // A copy of a case that a test may modify, with its model's directory by its whole name.
  std::string copy_of(const std::string& name) {
    const std::string copy = place_ / name;
    fs::remove_all(copy);
    fs::copy(kCases + name, copy);
    const std::string base =
        Json::read(copy + kAdapterConfig)["base_model_name_or_path"].as_string();
    set(copy, "base_model_name_or_path", Json(fs::canonical(kCases + name + "/" + base).string()));
    return copy;
  }
  static void set(const std::string& adapter, const std::string& key, const Json& value) {
    Json config = Json::read(adapter + kAdapterConfig);
    config.set(key, value);
    write_file(adapter + kAdapterConfig, config.dump(2, true));
  }
  std::vector<double> merged(const std::string& tensor) const {
    return SafetensorsFile(place_ / ("out" + kWeights)).doubles(tensor);
  }

  Workplace place_;
};

std::set<std::string> names_in(const std::string& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory))
    names.insert(entry.path().filename().string());
  return names;
}

TEST_F(MergeAdapter, EqualsPeft) {
  int64_t cases = 0;
  for (const auto& entry : fs::directory_iterator(kCases)) {
    const std::string name = entry.path().filename().string();
    SCOPED_TRACE(name);
    fs::remove_all(place_ / "out");
    const Outcome outcome = merge(kCases + name);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const std::string base =
        kCases + name + "/" +
        Json::read(kCases + name + kAdapterConfig)["base_model_name_or_path"].as_string();
    const SafetensorsFile before(base + kWeights), after(place_ / ("out" + kWeights)),
        expected(kCases + name + "/expected.safetensors");
    int64_t changed = 0, expected_changes = 0;
    for (const checkpoint::TensorInfo& info : before.tensors()) {
      const std::vector<double> got = after.doubles(info.name);
      if (expected.find("merged." + info.name) == nullptr) {
        EXPECT_EQ(got, before.doubles(info.name)) << info.name;
        continue;
      }
      const std::vector<double> wanted = expected.doubles("merged." + info.name);
      EXPECT_LE(selftest::difference_norm(got, wanted),
                tolerance::kMergedFp32 * selftest::norm(wanted))
          << info.name;
      ++changed;
    }
    for (const checkpoint::TensorInfo& info : expected.tensors())
      expected_changes += info.name.starts_with("merged.");
    EXPECT_EQ(changed, expected_changes);
    EXPECT_EQ(after.tensors().size(), before.tensors().size());
    EXPECT_EQ(read_file(place_ / "out/config.json"), read_file(base + "/config.json"));
    EXPECT_EQ(names_in(place_ / "out"), names_in(base));
    ++cases;
  }
  EXPECT_EQ(cases, 10);
}

TEST_F(MergeAdapter, SaysWhatWasMergedAndDoesNotDependOnThreads) {
  const Outcome one = merge(kCases + "modules_to_save", {"--threads", "1"});
  expect_contains(one.out, {"out: '", "modules_to_save' merged into '", "models/policy'",
                            "6 matrices with adapters, 2 tensors replaced"});
  const std::string bytes = read_file(place_ / ("out" + kWeights));
  fs::remove_all(place_ / "out");
  EXPECT_EQ(merge(kCases + "modules_to_save", {"--threads", "4"}).code, 0);
  EXPECT_EQ(read_file(place_ / ("out" + kWeights)), bytes);
}

// An adapter of rank 1 of one module, all elements of A and B 1, scale 1: adds 1 to each weight.
std::string plain_adapter(const std::string& path, const SafetensorsFile& base,
                          const std::string& adapted = kQuery) {
  const Shape shape = base.find(adapted + ".weight")->shape;
  fs::create_directories(path);
  const auto ones = [](std::span<std::byte> out) {
    constexpr float kOne = 1;
    for (size_t i = 0; i < out.size(); i += sizeof kOne)
      std::memcpy(out.data() + i, &kOne, sizeof kOne);
  };
  const std::string module = "base_model.model." + adapted;
  const std::vector<checkpoint::TensorToWrite> tensors = {
      {module + ".lora_A.weight", DType::f32, {1, shape[1]}, ones},
      {module + ".lora_B.weight", DType::f32, {shape[0], 1}, ones}};
  checkpoint::write_safetensors(path + kAdapterWeights, tensors, {});
  write_file(path + kAdapterConfig, fmt::format(R"({{"peft_type": "LORA", "r": 1, "lora_alpha": 1,
                              "target_modules": ["{}"]}})",
                                                adapted));
  return path;
}

TEST_F(MergeAdapter, KeepsTypesAndShards) {
  const std::string base = vectors("hf/llama_sharded");
  const Json index = Json::read(base + "/model.safetensors.index.json");
  const std::string shard = index["weight_map"][kQuery + ".weight"].as_string();
  const SafetensorsFile before(base + "/" + shard);
  const Outcome outcome = merge(plain_adapter(place_ / "adapter", before), {"--model", base});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(Json::read(place_ / "out/model.safetensors.index.json")["weight_map"],
            index["weight_map"]);
  const SafetensorsFile after(place_ / "out/" + shard);
  EXPECT_EQ(after.metadata(), before.metadata());
  for (const checkpoint::TensorInfo& info : before.tensors()) {
    EXPECT_EQ(after.find(info.name)->dtype, info.dtype);
    std::vector<double> wanted = before.doubles(info.name);
    if (info.name == kQuery + ".weight")
      for (double& value : wanted)
        for_floating_type(info.dtype, [&]<class T>(T) {
          value = static_cast<float>(static_cast<T>(static_cast<float>(value) + 1.0f));
        });
    EXPECT_EQ(after.doubles(info.name), wanted) << info.name;
  }
}

TEST_F(MergeAdapter, MergesOneExpert) {
  const std::string base = vectors("hf/olmoe"), expert = "model.layers.0.mlp.experts.2.down_proj";
  const SafetensorsFile before(base + kWeights);
  const Outcome outcome =
      merge(plain_adapter(place_ / "adapter", before, expert), {"--model", base});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const checkpoint::TensorInfo& info : before.tensors()) {
    std::vector<double> wanted = before.doubles(info.name);
    if (info.name == expert + ".weight")
      for (double& value : wanted) value = static_cast<float>(value) + 1.0f;
    EXPECT_EQ(merged(info.name), wanted) << info.name;
  }
}

// Adapters of all experts of a first layer, of rank 2 and scale 2, as PEFT stores them: from 0.19
// on, or, if `swapped`, before. Element (k, c) of expert e's A and (o, k) of its B are numbers
// that name them.
class FusedExperts {
 public:
  static constexpr int64_t kRank = 2, kHidden = 32, kWidth = 20;
  static float a(int64_t e, int64_t k, int64_t c) {
    return static_cast<float>((7 * e + 5 * k + 3 * c) % 11 - 5) / 16;
  }
  static float b(int64_t e, int64_t o, int64_t k) {
    return static_cast<float>((3 * e + 7 * k + 2 * o) % 13 - 6) / 16;
  }

  static std::string write(const std::string& path, int64_t experts_of_layer, bool swapped) {
    fs::create_directories(path);
    std::vector<checkpoint::TensorToWrite> tensors;
    const std::string experts = "base_model.model.model.layers.0.mlp.experts";
    add(tensors, experts + ".base_layer", experts_of_layer, 2 * kWidth, kHidden, swapped);
    add(tensors, experts, experts_of_layer, kHidden, kWidth, swapped);
    checkpoint::write_safetensors(path + kAdapterWeights, tensors, {});
    write_file(path + kAdapterConfig,
               R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": [],
                   "target_parameters": ["layers.0.mlp.experts.gate_up_proj",
                                         "layers.0.mlp.experts.down_proj"]})");
    return path;
  }

 private:
  static void add(std::vector<checkpoint::TensorToWrite>& tensors, const std::string& name,
                  int64_t experts, int64_t out, int64_t in, bool swapped) {
    std::vector<float> first(static_cast<size_t>(experts * kRank * (swapped ? out : in))),
        second(static_cast<size_t>(experts * kRank * (swapped ? in : out)));
    const auto put = [&](std::vector<float>& slowest, std::vector<float>& fastest, int64_t columns,
                         int64_t e, int64_t k, int64_t at, float value, bool is_slowest) {
      if (is_slowest) slowest[static_cast<size_t>((e * kRank + k) * columns + at)] = value;
      else fastest[static_cast<size_t>((at * kRank + k) * experts + e)] = value;
    };
    for (int64_t e = 0; e < experts; ++e) {
      for (int64_t k = 0; k < kRank; ++k) {
        for (int64_t c = 0; c < in; ++c) put(first, second, in, e, k, c, a(e, k, c), !swapped);
        for (int64_t o = 0; o < out; ++o) put(first, second, out, e, k, o, b(e, o, k), swapped);
      }
    }
    const auto writer = [](std::vector<float> values) {
      return [values = std::move(values)](std::span<std::byte> bytes) {
        std::memcpy(bytes.data(), values.data(), bytes.size());
      };
    };
    tensors.push_back({name + ".lora_A.weight",
                       DType::f32,
                       {experts * kRank, swapped ? out : in},
                       writer(std::move(first))});
    tensors.push_back({name + ".lora_B.weight",
                       DType::f32,
                       {swapped ? in : out, kRank * experts},
                       writer(std::move(second))});
  }
};

TEST_F(MergeAdapter, MergesFusedExpertsInBothLayoutsOfPeft) {
  const std::string base = vectors("hf/olmoe"), experts = "model.layers.0.mlp.experts.";
  const SafetensorsFile before(base + kWeights);
  ASSERT_NE(before.find(experts + "5.up_proj.weight"), nullptr);
  ASSERT_EQ(before.find(experts + "6.up_proj.weight"), nullptr);
  for (const bool swapped : {false, true}) {
    fs::remove_all(place_ / "out");
    const Outcome outcome =
        merge(FusedExperts::write(place_ / "adapter", 6, swapped), {"--model", base});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    expect_contains(outcome.out, {"18 matrices with adapters"});
    for (int64_t e = 0; e < 6; ++e) {
      for (const auto& [matrix, row] :
           {std::pair{"gate_proj", int64_t{0}}, std::pair{"up_proj", FusedExperts::kWidth},
            std::pair{"down_proj", int64_t{0}}}) {
        const std::string name = fmt::format("{}{}.{}.weight", experts, e, matrix);
        const Shape shape = before.find(name)->shape;
        std::vector<double> wanted = before.doubles(name);
        for (int64_t o = 0; o < shape[0]; ++o)
          for (int64_t c = 0; c < shape[1]; ++c)
            for (int64_t k = 0; k < FusedExperts::kRank; ++k)
              wanted[static_cast<size_t>(o * shape[1] + c)] +=
                  2.0 * FusedExperts::b(e, row + o, k) * FusedExperts::a(e, k, c);
        EXPECT_LE(selftest::difference_norm(merged(name), wanted),
                  tolerance::kMergedFp32 * selftest::norm(wanted))
            << name << (swapped ? ", swapped" : "");
      }
    }
  }
}

// The base has one tensor [experts, in, out] for all experts.
TEST_F(MergeAdapter, MergesExpertsThatTheBaseStoresAsOne) {
  constexpr int64_t kExperts = 5;
  const std::string base = vectors("hf/gpt_oss"), experts = "model.layers.0.mlp.experts.";
  const SafetensorsFile before(base + kWeights);
  const Outcome outcome =
      merge(FusedExperts::write(place_ / "adapter", kExperts, false), {"--model", base});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_contains(outcome.out, {"2 matrices with adapters"});
  for (const char* parameter : {"gate_up_proj", "down_proj"}) {
    const std::string name = experts + parameter;
    const Shape shape = before.find(name)->shape;
    ASSERT_EQ(shape[0], kExperts);
    std::vector<double> wanted = before.doubles(name);
    for (size_t i = 0; i < wanted.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      const int64_t out = at % shape[2], in = at / shape[2] % shape[1],
                    e = at / shape[2] / shape[1];
      for (int64_t k = 0; k < FusedExperts::kRank; ++k)
        wanted[i] += 2.0 * FusedExperts::b(e, out, k) * FusedExperts::a(e, k, in);
    }
    EXPECT_LE(selftest::difference_norm(merged(name), wanted),
              tolerance::kMergedFp32 * selftest::norm(wanted))
        << name;
  }
  EXPECT_EQ(merged(experts + "down_proj_bias"), before.doubles(experts + "down_proj_bias"));
}

// The merged model is the golden one, also in its own class, and opens again.
TEST_F(MergeAdapter, WritesTheHeadThatAnAdapterBrings) {
  for (const HeadAdapter& c : head_adapters()) {
    SCOPED_TRACE(c.name);
    fs::remove_all(place_ / "out");
    const HeadAdapterFiles files(c, place_ / c.name);
    const Outcome outcome = merge(place_ / (c.name + "/adapter"));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    expect_contains(outcome.out, {"1 matrices with adapters", "tensors of a new head"});
    const std::string golden = vectors("hf/" + c.name);
    const SafetensorsFile after(place_ / ("out" + kWeights)), model(golden + kWeights);
    EXPECT_EQ(after.tensors().size(), model.tensors().size());
    for (const checkpoint::TensorInfo& info : model.tensors()) {
      ASSERT_NE(after.find(info.name), nullptr) << info.name;
      const std::vector<double> wanted = model.doubles(info.name);
      EXPECT_LE(selftest::difference_norm(after.doubles(info.name), wanted),
                tolerance::kMergedFp32 * selftest::norm(wanted))
          << info.name;
    }
    EXPECT_EQ(Json::read(place_ / "out/config.json")["architectures"],
              Json::read(golden + "/config.json")["architectures"]);
    fs::copy(golden + "/expected.safetensors", place_ / "out");
    const Outcome verified = place_.run({"verify", "out"});
    EXPECT_EQ(verified.code, 0) << verified.out << verified.err;
  }
}

TEST_F(MergeAdapter, RefusesAHeadWithoutItsPooler) {
  HeadAdapter c = head_adapters().at(0);
  const HeadAdapterFiles files(c, place_ / c.name);
  const std::string adapter = place_ / (c.name + "/adapter");
  change_tensors(adapter + kAdapterWeights, [](Values& values) {
    std::erase_if(values, [](const auto& value) { return has(value.first, "pooler"); });
  });
  refused(adapter, {"brings a head", "bert.pooler.dense.weight", "modules_to_save"});
}

TEST_F(MergeAdapter, GivesConv1DOutputsTheLengthsOfDoRA) {
  const std::string adapter = copy_of("gpt2_conv1d"), module = "transformer.h.1.attn.c_proj";
  set(adapter, "use_dora", true);
  set(adapter, "target_modules", Json::Array{module});
  const SafetensorsFile old(kCases + "gpt2_conv1d" + kAdapterWeights);
  std::vector<checkpoint::TensorToWrite> tensors;
  const std::string prefix = "base_model.model." + module;
  for (const char* part : {".lora_A.weight", ".lora_B.weight"}) {
    const checkpoint::TensorInfo& info = *old.find(prefix + part);
    tensors.push_back({info.name, info.dtype, info.shape, [&old, &info](std::span<std::byte> out) {
                         std::ranges::copy(old.bytes(info), out.begin());
                       }});
  }
  constexpr int64_t kOutputs = 24;
  tensors.push_back(
      {prefix + ".lora_magnitude_vector", DType::f32, {kOutputs}, [](std::span<std::byte> out) {
         for (size_t i = 0; i < kOutputs; ++i) {
           const float length = 1 + 0.5f * static_cast<float>(i);
           std::memcpy(out.data() + i * sizeof length, &length, sizeof length);
         }
       }});
  checkpoint::write_safetensors(adapter + kAdapterWeights, tensors, {});
  ASSERT_EQ(merge(adapter).code, 0);
  const std::vector<double> got = merged(module + ".weight"),
                            plain = SafetensorsFile(kCases + "gpt2_conv1d/expected.safetensors")
                                        .doubles("merged." + module + ".weight");
  for (size_t output = 0; output < kOutputs; ++output) {
    double squares = 0, product = 0, plain_squares = 0;
    for (size_t i = output; i < got.size(); i += kOutputs) {
      squares += got[i] * got[i];
      product += got[i] * plain[i];
      plain_squares += plain[i] * plain[i];
    }
    const double length = 1 + 0.5 * static_cast<double>(output);
    EXPECT_NEAR(std::sqrt(squares), length, tolerance::kMergedFp32 * length);
    EXPECT_NEAR(product, std::sqrt(squares * plain_squares), tolerance::kMergedFp32 * product);
  }
}

TEST_F(MergeAdapter, TakesTheTokenizerOfTheAdapter) {
  const std::string adapter = copy_of("qv"), base = place_ / "base";
  fs::copy(kModels + "policy", base);
  for (const std::string& folder : {adapter, base})
    fs::copy(vectors("post_training/sft/chatml/tokenizer.json"), folder);
  write_file(base + "/chat_template.jinja", "base");
  write_file(base + "/notes.md", "notes");
  write_file(adapter + "/chat_template.jinja", "adapter");
  const Outcome outcome = merge(adapter, {"--model", base});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(read_file(place_ / "out/chat_template.jinja"), "adapter");
  EXPECT_EQ(read_file(place_ / "out/notes.md"), "notes");
  EXPECT_EQ(names_in(place_ / "out"), names_in(base));
}

TEST_F(MergeAdapter, OverwritesNothing) {
  fs::create_directory(place_ / "out");
  const Outcome outcome = merge(kCases + "qv");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_TRUE(has(outcome.err, "'out' already exists")) << outcome.err;
  EXPECT_TRUE(fs::is_empty(place_ / "out"));
}

TEST_F(MergeAdapter, RefusesWhatDoesNotBelongTogether) {
  refused(kModels + "policy", {"policy", "adapter_config.json"});
  refused(place_ / "none", {"none' does not exist"});
  const std::string adapter = copy_of("qv");
  refused(adapter, {"lora_A.weight", "qwen2", "[4, 32]", "must have [4, 24]"},
          {"--model", kModels + "qwen2"});
  set(adapter, "r", 3);
  refused(adapter, {"lora_A.weight", "has shape [4, 32]", "must have [3, 32]"});
  set(adapter, "r", 4);
  set(adapter, "target_modules", Json::Array{Json("q_proj")});
  refused(adapter, {"cannot be merged", ": 4 (", "layers.0.self_attn.v_proj.lora_A.weight"});
  set(adapter, "target_modules", Json::Array{Json("q_proj"), Json("v_proj"), Json("k_proj")});
  refused(adapter, {"no matrices A and B for model.layers.0.self_attn.k_proj"});
  set(adapter, "base_model_name_or_path", "nowhere");
  refused(adapter, {"nowhere", "--model"});
}

TEST_F(MergeAdapter, RefusesTrainedRowsThatItDoesNotHave) {
  const std::string adapter = copy_of("qv");
  set(adapter, "trainable_token_indices", Json::Array{Json(3)});
  refused(adapter, {"no trainable_tokens_delta for model.embed_tokens"});
}

TEST_F(MergeAdapter, RefusesAnEmbeddingThatIsAlsoTheOutputLayer) {
  const std::string adapter = copy_of("embedding_and_head");
  set(adapter, "target_modules", Json::Array{Json("embed_tokens")});
  refused(adapter, {"model.embed_tokens", "tie_word_embeddings"}, {"--model", kModels + "qwen3"});
}

}  // namespace
}  // namespace megatron::testing
