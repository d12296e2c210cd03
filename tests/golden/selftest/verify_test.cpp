// Verifies Hugging Face directories and training trajectories made by other systems.
#include "selftest/verify.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <fstream>

#include "base/error.h"
#include "base/json.h"
#include "base/tolerances.h"
#include "selftest/compare_directories.h"
#include "selftest/experiment.h"
#include "selftest/trajectory.h"
#include "support.h"

namespace megatron::selftest {
namespace {

using megatron::testing::change_tensors;
using megatron::testing::TemporaryDirectory;
using megatron::testing::Values;
using megatron::testing::vectors;

void expect_passed(const std::vector<Report>& reports, size_t count) {
  EXPECT_EQ(reports.size(), count);
  for (const Report& report : reports) EXPECT_TRUE(report.passed()) << report.text();
}

std::string copy_of(const std::string& name, const TemporaryDirectory& to) {
  const std::string path = to / std::filesystem::path(name).filename().string();
  std::filesystem::copy(vectors(name), path);
  return path;
}

class Model : public ::testing::TestWithParam<const char*> {};

TEST_P(Model, AgreesWithHuggingFace) {
  const std::vector<Report> reports = verify(vectors(std::string("hf/") + GetParam()), {});
  expect_passed(reports, 2);
  for (const Report& report : reports) EXPECT_GT(report.compared(), 25) << report.text();
}

TEST_P(Model, ComesBackByteForByte) {
  const TemporaryDirectory directory;
  const Report report = verify_rewrite(vectors(std::string("hf/") + GetParam()), directory / "out");
  EXPECT_TRUE(report.passed()) << report.text();
  EXPECT_GT(report.compared(), 15);
}

// Three layers: stages get unequal shares, and one of four gets none. Two key heads: each is shared
// by two of four ranks.
TEST_P(Model, AgreesHoweverItIsDivided) {
  const std::string directory = vectors(std::string("hf/") + GetParam());
  const int64_t compared = verify(directory, {}).at(0).compared();
  for (const auto& [tensor, pipeline] : {std::pair{2, 1}, std::pair{1, 2}, std::pair{2, 2},
                                         std::pair{4, 1}, std::pair{1, 3}, std::pair{2, 4}}) {
    const std::vector<Report> reports =
        verify(directory, {.tensor_parallel = tensor, .pipeline_parallel = pipeline});
    expect_passed(reports, 2);
    for (const Report& report : reports) EXPECT_EQ(report.compared(), compared) << report.text();
  }
}

TEST_P(Model, AgreesWithTokensDividedToo) {
  const std::string directory = vectors(std::string("hf/") + GetParam());
  const int64_t compared = verify(directory, {}).at(0).compared();
  for (const auto& [tensor, pipeline] : {std::pair{2, 1}, std::pair{4, 1}, std::pair{2, 2}}) {
    const std::vector<Report> reports = verify(
        directory,
        {.tensor_parallel = tensor, .pipeline_parallel = pipeline, .sequence_parallel = true});
    expect_passed(reports, 2);
    for (const Report& report : reports) EXPECT_EQ(report.compared(), compared) << report.text();
  }
}

const VerifyOptions kTwoLevels = {.context_parallel = 4,
                                  .context_exchange = {parallel::ContextExchange::a2a_p2p},
                                  .context_levels = {2, 2}};

// Sequences that cannot be divided evenly are padded.
TEST_P(Model, AgreesWithSequencesDivided) {
  using parallel::ContextExchange;
  const std::string directory = vectors(std::string("hf/") + GetParam());
  const int64_t compared = verify(directory, {}).at(0).compared();
  for (const VerifyOptions& options :
       {VerifyOptions{.tensor_parallel = 2, .context_parallel = 2, .sequence_parallel = true},
        VerifyOptions{.pipeline_parallel = 2,
                      .context_parallel = 2,
                      .context_exchange = {ContextExchange::all_gather}},
        VerifyOptions{.context_parallel = 4}, kTwoLevels,
        VerifyOptions{.data_parallel = 2,
                      .context_parallel = 2,
                      .context_exchange = {ContextExchange::a2a}}}) {
    const std::vector<Report> reports = verify(directory, options);
    expect_passed(reports, 2);
    for (const Report& report : reports) EXPECT_EQ(report.compared(), compared) << report.text();
  }
}

INSTANTIATE_TEST_SUITE_P(Vectors, Model,
                         ::testing::Values("gpt2", "llama", "llama_tied", "llama_bf16",
                                           "llama_fp16", "llama_sharded"),
                         [](const auto& info) { return std::string(info.param); });

// A model written by torch.save, and the directory of the set hf with the same weights.
class TorchModel : public ::testing::TestWithParam<std::pair<const char*, const char*>> {
 protected:
  std::string directory() const { return vectors(std::string("torch/") + GetParam().first); }
  std::string original() const { return vectors(std::string("hf/") + GetParam().second); }
};

TEST_P(TorchModel, AgreesWithHuggingFace) {
  const TemporaryDirectory folder;
  std::filesystem::copy(directory(), folder / "m");
  std::filesystem::copy(original() + "/expected.safetensors", folder / "m");
  const std::vector<Report> reports = verify(folder / "m", {});
  expect_passed(reports, 2);
  const int64_t compared = verify(original(), {}).at(0).compared();
  for (const Report& report : reports) EXPECT_EQ(report.compared(), compared) << report.text();
}

TEST_P(TorchModel, IsWrittenAgainAsSafetensors) {
  const TemporaryDirectory folder;
  const Report report = verify_rewrite(directory(), folder / "out");
  EXPECT_TRUE(report.passed()) << report.text();
  const Report same = compare_directories(original(), folder / "out");
  EXPECT_TRUE(same.passed()) << same.text();
  EXPECT_EQ(report.compared(), same.compared());
  for (const auto& entry : std::filesystem::directory_iterator(folder / "out"))
    EXPECT_NE(entry.path().extension(), ".bin") << entry.path();
}

INSTANTIATE_TEST_SUITE_P(Vectors, TorchModel,
                         ::testing::Values(std::pair{"gpt2_legacy", "gpt2"},
                                           std::pair{"gpt2_zip", "gpt2"},
                                           std::pair{"llama_sharded", "llama_bf16"}),
                         [](const auto& info) { return std::string(info.param.first); });

// GPT-OSS in its released format.
TEST(Mxfp4Model, IsWrittenAgainInBf16) {
  const TemporaryDirectory folder;
  const Report report = verify_rewrite(vectors("mxfp4/released"), folder / "out");
  EXPECT_TRUE(report.passed()) << report.text();
  EXPECT_EQ(Json::read(folder / "out/config.json").find("quantization_config"), nullptr);
  for (const std::string& directory : {vectors("mxfp4/released"), folder / "out"}) {
    const Report same = compare_directories(vectors("mxfp4/bf16"), directory);
    EXPECT_TRUE(same.passed()) << same.text();
    EXPECT_EQ(report.compared(), same.compared());
  }
}

// The published GPT-2 was saved from the model without its head: its tensor names lack
// "transformer.", and it contains mask buffers.
TEST(Gpt2, WithoutThePrefixOfItsNames) {
  const TemporaryDirectory folder;
  const std::string model = copy_of("hf/gpt2", folder);
  {
    const checkpoint::SafetensorsFile file(vectors("hf/gpt2/model.safetensors"));
    std::vector<checkpoint::TensorToWrite> tensors;
    for (const checkpoint::TensorInfo& info : file.tensors()) {
      constexpr std::string_view kPrefix = "transformer.";
      ASSERT_TRUE(info.name.starts_with(kPrefix)) << info.name;
      tensors.push_back({info.name.substr(kPrefix.size()), info.dtype, info.shape,
                         [bytes = file.bytes(info)](std::span<std::byte> out) {
                           std::ranges::copy(bytes, out.begin());
                         }});
    }
    tensors.push_back({"h.0.attn.bias", DType::f32, {1, 1}, [](std::span<std::byte> out) {
                         std::ranges::fill(out, std::byte{0});
                       }});
    checkpoint::write_safetensors(model + "/model.safetensors", tensors, file.metadata());
  }
  expect_passed(verify(model, {}), 2);
  expect_passed(verify(model, {.tensor_parallel = 2, .pipeline_parallel = 2}), 2);
  const Report again = verify_rewrite(model, folder / "out");
  EXPECT_TRUE(again.passed()) << again.text();
  std::filesystem::copy(model + "/expected.safetensors", folder / "out");
  expect_passed(verify(folder / "out", {}), 2);
}

TEST(VerifyRewrite, LeavesFilesOfTorchThatAreNotRead) {
  const TemporaryDirectory folder;
  std::filesystem::copy(vectors("torch/gpt2_zip"), folder / "m");
  std::filesystem::copy(vectors("hf/gpt2/model.safetensors"), folder / "m");
  const Report report = verify_rewrite(folder / "m", folder / "out");
  EXPECT_TRUE(report.passed()) << report.text();
  EXPECT_FALSE(std::filesystem::exists(folder / "out/pytorch_model.bin"));
}

// Every other family and scaling of rotary positions, each in the layouts that exercise its
// features.
class OtherModel : public ::testing::TestWithParam<const char*> {
 protected:
  std::string directory() const { return vectors(std::string("hf/") + GetParam()); }
};

TEST_P(OtherModel, AgreesWithHuggingFace) {
  const std::vector<Report> reports = verify(directory(), {});
  expect_passed(reports, 2);
  for (const Report& report : reports) EXPECT_GT(report.compared(), 25) << report.text();
}

TEST_P(OtherModel, ComesBackByteForByte) {
  const TemporaryDirectory out;
  const Report report = verify_rewrite(directory(), out / "out");
  EXPECT_TRUE(report.passed()) << report.text();
  EXPECT_GT(report.compared(), 15);
}

TEST_P(OtherModel, AgreesHoweverItIsDivided) {
  const VerifyOptions tensor{.tensor_parallel = 2, .sequence_parallel = true},
      pipeline{.pipeline_parallel = 2},
      sharded{.data_parallel = 2, .sharding = parallel::Sharding::parameters};
  expect_passed(verify(directory(), pipeline), 2);
  expect_passed(verify(directory(), sharded), 2);
  if (std::string(GetParam()) == "gpt_neox") {
    EXPECT_THROW(verify(directory(), tensor), Error);  // has three heads
  } else {
    expect_passed(verify(directory(), tensor), 2);
  }
}

TEST_P(OtherModel, AgreesWithSequencesDivided) {
  expect_passed(verify(directory(), {.context_parallel = 2}), 2);
  if (std::string(GetParam()) == "gpt_neox")  // has three heads
    EXPECT_THROW(verify(directory(), kTwoLevels), Error);
  else expect_passed(verify(directory(), kTwoLevels), 2);
}

// Attention with windows, chunks and sinks, on ranks that exchange only the visible tokens, or
// heads.
TEST(SeenTokens, AreEnoughForEachExchange) {
  using parallel::ContextExchange;
  for (const std::string model : {"mistral", "llama4_text", "gpt_oss"})
    for (const VerifyOptions& options :
         {VerifyOptions{.context_parallel = 4},
          VerifyOptions{.context_parallel = 4, .context_exchange = {ContextExchange::all_gather}},
          VerifyOptions{.context_parallel = 2, .context_exchange = {ContextExchange::a2a}}})
      expect_passed(verify(vectors("hf/" + model), options), 2);
}

INSTANTIATE_TEST_SUITE_P(
    Vectors, OtherModel,
    ::testing::Values("gpt_neox", "llama3", "llama_linear", "llama_dynamic", "llama_yarn",
                      "llama_reward", "llama_classify", "mistral", "qwen2", "qwen3", "gemma2",
                      "gemma3_text", "phi3", "olmo2", "granite", "nemotron", "starcoder2", "falcon",
                      "cohere2", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "glm4_moe",
                      "gpt_oss", "llama4_text", "deepseek_v2", "deepseek_v2_lite", "deepseek_v3",
                      "bert", "bert_classify", "bert_tokens", "bert_qa", "roberta", "distilbert",
                      "modernbert", "modernbert_classify", "esm"),
    [](const auto& info) { return std::string(info.param); });

// GPT-NeoX's golden directory has three heads. The same model with four heads and random weights
// runs in the layouts that three heads exclude; compares losses and gradients in fp64.
TEST(GptNeox, WithFourHeadsAgreesHoweverItIsDivided) {
  Json config = Json::read(vectors("hf/gpt_neox/config.json"));
  config.set("num_attention_heads", 4);
  const Environment environment;
  const Experiment experiment(models::model_from_config_json(config), DeviceKind::reference,
                              DType::f64, DType::f64, settings::LossScope::token, 4, 16,
                              environment);
  const std::vector<optim::Method> methods = {optim::Method::sgd, optim::Method::adam};
  const Outcome one = experiment.run({.micro_batch = 2}, methods);
  for (const Layout& layout :
       {Layout{.tp = 2, .sequence = true, .micro_batch = 2},
        Layout{.pipeline = {.stages = 2}, .micro_batch = 2},
        Layout{.tp = 4, .sequence = true, .pipeline = {.stages = 2}, .micro_batch = 2}}) {
    Report report(layout.str());
    compare_outcomes(layout.str(), experiment.run(layout, methods), one, tolerance::kLayoutFp64,
                     report);
    EXPECT_TRUE(report.passed()) << report.text();
    EXPECT_GT(report.compared(), 25) << report.text();
  }
}

class Trajectory : public ::testing::TestWithParam<const char*> {};

TEST_P(Trajectory, IsMet) {
  expect_passed(verify_trajectory(vectors(std::string("train/") + GetParam()), {}), 2);
}

TEST_P(Trajectory, IsMetByEightRanks) {
  const std::string directory = vectors(std::string("train/") + GetParam());
  // The auxiliary loss of a micro-batch differs from that of its halves.
  const int replicas = std::string(GetParam()) == "mixtral_aux" ? 1 : 2;
  const std::vector<Report> reports = verify_trajectory(
      directory, {.tensor_parallel = 2, .pipeline_parallel = 2, .data_parallel = replicas});
  expect_passed(reports, 2);
  const int64_t compared = verify_trajectory(directory, {}).at(0).compared();
  for (const Report& report : reports) EXPECT_EQ(report.compared(), compared) << report.text();
}

// Other instruction sets round differently.
TEST_P(Trajectory, IsMetWithAvx2) {
  if ((hwy::SupportedTargets() & HWY_AVX2) == 0) GTEST_SKIP() << "this processor has no AVX2";
  hwy::SetSupportedTargetsForTest(HWY_AVX2);
  hwy::GetChosenTarget().DeInit();
  const std::string directory = vectors(std::string("train/") + GetParam());
  expect_passed(verify_trajectory(directory, {.devices = {DeviceKind::cpu}}), 1);
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

INSTANTIATE_TEST_SUITE_P(Vectors, Trajectory,
                         ::testing::Values("llama_sgd", "llama_adamw", "llama_long", "gpt2_cosine",
                                           "gpt2_mask", "gpt2_mask_microbatch", "llama_wsd",
                                           "llama_tied_clip", "llama_lion", "llama_muon",
                                           "llama_muon_quintic", "qwen3_wd_ramp", "mixtral",
                                           "mixtral_aux", "gpt_oss", "deepseek_v3", "mamba2"),
                         [](const auto& info) { return std::string(info.param); });

void expect_refused(const std::string& directory, const VerifyOptions& options,
                    const std::vector<std::string>& words) {
  try {
    if (directory.starts_with("hf/")) verify(vectors(directory), options);
    else verify_trajectory(vectors(directory), options);
    ADD_FAILURE() << "no error with" << options.text();
  } catch (const Error& e) {
    for (const std::string& word : words)
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << word << ": " << e.what();
  }
}

TEST(Verify, SaysWhichLayoutsCannotBe) {
  expect_refused("hf/llama", {.tensor_parallel = 3}, {"--tensor-model-parallel-size", "3", "4"});
  expect_refused("hf/gpt2", {.tensor_parallel = 8}, {"--tensor-model-parallel-size", "8", "4"});
  expect_refused("hf/gpt_neox", {.tensor_parallel = 2},
                 {"--tensor-model-parallel-size", "2", "--num-attention-heads", "3"});
  expect_refused("train/llama_sgd", {.data_parallel = 3}, {"--data-parallel-size", "4", "3"});
  expect_refused("train/gpt2_mask_microbatch", {.data_parallel = 8}, {"--data-parallel-size", "8"});
}

struct ExpertLayout {
  const char* directory;
  VerifyOptions options;
};
class DividedExperts : public ::testing::TestWithParam<ExpertLayout> {};

// Experts divided among data-parallel ranks, among tensor-parallel ranks that divide the tokens,
// and each sliced; also five experts on five ranks, three of which have no sequence.
TEST_P(DividedExperts, GiveWhatTransformersComputed) {
  const auto& [directory, options] = GetParam();
  for (const Report& report : verify(vectors(directory), options))
    EXPECT_TRUE(report.passed()) << report.text();
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, DividedExperts,
    ::testing::Values(ExpertLayout{"hf/mixtral", {.data_parallel = 5, .expert_parallel = 5}},
                      ExpertLayout{"hf/gpt_oss", {.tensor_parallel = 2, .sequence_parallel = true}},
                      ExpertLayout{"hf/qwen2_moe", {.data_parallel = 2, .expert_parallel = 2}},
                      ExpertLayout{"hf/qwen3_moe",
                                   {.tensor_parallel = 2,
                                    .pipeline_parallel = 2,
                                    .expert_parallel = 2,
                                    .expert_tensor_parallel = 1,
                                    .sequence_parallel = true}},
                      ExpertLayout{"hf/olmoe", {.tensor_parallel = 2}},
                      ExpertLayout{"hf/glm4_moe",
                                   {.tensor_parallel = 2,
                                    .data_parallel = 2,
                                    .expert_parallel = 2,
                                    .sequence_parallel = true}},
                      ExpertLayout{"hf/deepseek_v2",
                                   {.tensor_parallel = 2,
                                    .pipeline_parallel = 2,
                                    .data_parallel = 2,
                                    .expert_parallel = 2,
                                    .sequence_parallel = true}},
                      ExpertLayout{"hf/deepseek_v3",
                                   {.tensor_parallel = 2,
                                    .data_parallel = 2,
                                    .context_parallel = 2,
                                    .expert_parallel = 2,
                                    .sequence_parallel = true}},
                      ExpertLayout{"hf/nemotron_h",
                                   {.tensor_parallel = 2,
                                    .data_parallel = 2,
                                    .expert_parallel = 2,
                                    .sequence_parallel = true}},
                      ExpertLayout{"hf/llama4_text",
                                   {.data_parallel = 2,
                                    .expert_parallel = 2,
                                    .sharding = parallel::Sharding::parameters}}),
    [](const auto& info) { return std::string(info.param.directory).substr(3); });

TEST(Verify, ExpertsOfRanksThatDivideSequences) {
  for (const int expert_ranks : {2, 4}) {
    const VerifyOptions options{
        .data_parallel = 2, .context_parallel = 2, .expert_parallel = expert_ranks};
    expect_passed(verify(vectors("hf/glm4_moe"), options), 2);
  }
}

TEST(Verify, TrajectoriesOfExpertsOnDividedTokens) {
  const VerifyOptions options{.tensor_parallel = 2, .sequence_parallel = true};
  for (const char* name : {"train/mixtral_aux", "train/gpt_oss"}) {
    for (const Report& report : verify_trajectory(vectors(name), options))
      EXPECT_TRUE(report.passed()) << report.text();
  }
}

TEST(Verify, ExpertsThatCannotBeDividedAreRefused) {
  expect_refused("hf/mixtral", {.data_parallel = 2, .expert_parallel = 2},
                 {"5 experts", "2 ranks", "--expert-model-parallel-size"});
}

TEST(Verify, RanksMayBeMoreThanSequences) {
  const auto reports =
      verify(vectors("hf/llama"), {.devices = {DeviceKind::cpu}, .data_parallel = 3});
  for (const Report& report : reports) EXPECT_TRUE(report.passed()) << report.text();
}

TEST(Verify, NoticesOneChangedWeight) {
  for (const std::string name :
       {"transformer.h.1.mlp.c_fc.weight", "transformer.wte.weight", "transformer.h.0.ln_1.bias"}) {
    const TemporaryDirectory directory;
    const std::string model = copy_of("hf/gpt2", directory);
    change_tensors(model + "/model.safetensors",
                   [&](Values& values) { values.at(name)[7] += 1e-3f; });
    for (const Report& report : verify(model, {}))
      EXPECT_FALSE(report.passed()) << name << "\n" << report.text();
  }
}

TEST(Verify, NoticesATensorThatItCannotCompare) {
  const TemporaryDirectory directory;
  const std::string model = copy_of("hf/llama", directory);
  change_tensors(model + "/expected.safetensors",
                 [](Values& values) { values["router_logits.0"] = {1, 2}; });
  const Report report = verify(model, {.devices = {DeviceKind::cpu}}).at(0);
  ASSERT_EQ(report.failures().size(), 1u) << report.text();
  EXPECT_NE(report.failures()[0].find("router_logits.0"), std::string::npos);
}

TEST(Verify, NoticesAWrongGradientAndAMissingOne) {
  const TemporaryDirectory directory;
  const std::string model = copy_of("hf/llama", directory);
  const std::string name = "grad.model.layers.1.self_attn.k_proj.weight";
  change_tensors(model + "/expected.safetensors", [&](Values& values) {
    for (float& g : values.at(name)) g *= 1.001f;
  });
  const Report report = verify(model, {.devices = {DeviceKind::cpu}}).at(0);
  ASSERT_EQ(report.failures().size(), 1u) << report.text();
  EXPECT_NE(report.failures()[0].find(name), std::string::npos);
}

// YaRN's second factor also multiplies the scores of latent attention, by its square.
TEST(Verify, NoticesAScoreWithoutYarnsSecondFactor) {
  const TemporaryDirectory directory;
  std::filesystem::copy(vectors("hf/deepseek_v3"), directory / "model");
  const std::string path = directory / "model/config.json";
  Json config = Json::read(path);
  Json rope = config["rope_parameters"];
  // The factor of cos and sin stays what the two gave.
  rope.set("attention_factor", 1.0);
  rope.set("mscale_all_dim", 0.0);
  config.set("rope_parameters", rope);
  std::ofstream(path) << config.dump();
  const std::vector<Report> reports = verify(directory / "model", {});
  for (const Report& report : reports) EXPECT_FALSE(report.passed()) << report.text();
}

TEST(Verify, RefusesTokensOutsideOfTheVocabulary) {
  const TemporaryDirectory directory;
  const std::string model = copy_of("hf/llama", directory);
  std::string config;
  {
    std::ifstream in(model + "/config.json");
    config.assign(std::istreambuf_iterator<char>(in), {});
  }
  config.replace(config.find("\"max_position_embeddings\": "), 27,
                 "\"max_position_embeddings\": 9, \"unused\": ");
  std::ofstream(model + "/config.json") << config;
  try {
    verify(model, {});
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("24 tokens per sequence, but the model has only 9"),
              std::string::npos)
        << e.what();
  }
}

// A trajectory and its model in a folder that a test may modify.
class TrajectoryFolder : public ::testing::Test {
 protected:
  std::string folder_of(const std::string& name) {
    for (const std::string& path : {std::string("hf/llama"), "train/" + name}) {
      std::filesystem::create_directories(directory_ / std::filesystem::path(path).parent_path());
      std::filesystem::remove_all(directory_ / path);
      std::filesystem::copy(vectors(path), directory_ / path);
    }
    return directory_ / ("train/" + name);
  }
  static Report verified(const std::string& folder) {
    return verify_trajectory(folder, {.devices = {DeviceKind::cpu}}).at(0);
  }
  // Reports after the expected elements [0, count) of a parameter were changed, for all steps or
  // the first.
  Report with_moved(const std::string& name, const std::string& key, int count, float by) {
    const std::string folder = folder_of(name);
    change_tensors(folder + "/expected.safetensors", [&](Values& values) {
      for (int i = 0; i < count; ++i) values.at(key)[static_cast<size_t>(i)] += by;
    });
    return verified(folder);
  }

  TemporaryDirectory directory_;
};

constexpr float kLionRate = 3e-4f;  // from llama_lion's case.json
const std::string kKeys = "model.layers.1.self_attn.k_proj.weight";

TEST_F(TrajectoryFolder, AllowsASignOfLionThatRoundingTurned) {
  for (const std::string step : {"step1.", "final."}) {
    const Report report = with_moved("llama_lion", step + kKeys, 1, 2 * kLionRate);
    EXPECT_TRUE(report.passed()) << report.text();
    EXPECT_NE(report.text().find("sign flips"), std::string::npos) << report.text();
  }
  const Report twice = with_moved("llama_lion", "final." + kKeys, 1, -4 * kLionRate);
  EXPECT_TRUE(twice.passed()) << twice.text();
}

TEST_F(TrajectoryFolder, AllowsFewSignsAndOnlyLions) {
  EXPECT_FALSE(with_moved("llama_lion", "final." + kKeys, 8, 2 * kLionRate).passed());
  EXPECT_FALSE(with_moved("llama_lion", "step1." + kKeys, 1, 3 * kLionRate).passed());
  EXPECT_FALSE(with_moved("llama_lion", "final." + kKeys, 1, 25 * kLionRate).passed());
  EXPECT_FALSE(with_moved("llama_adamw", "final." + kKeys, 1, 2e-2f).passed());
}

TEST_F(TrajectoryFolder, MeasuresTheFirstStepByTheMovementOfAll) {
  const std::string folder = folder_of("llama_sgd");
  double movement = 0;
  change_tensors(folder + "/expected.safetensors", [&](Values& values) {
    // Most of the run lies between these two.
    const auto &one = values.at("step1." + kKeys), &last = values.at("final." + kKeys);
    for (size_t i = 0; i < one.size(); ++i) movement += std::pow(last[i] - one[i], 2);
  });
  movement = std::sqrt(movement);
  change_tensors(folder + "/expected.safetensors", [&](Values& values) {
    values.at("step1." + kKeys)[7] += static_cast<float>(0.5e-3 * movement);
  });
  const Report near = verified(folder);
  EXPECT_TRUE(near.passed()) << near.text();
  change_tensors(folder + "/expected.safetensors", [&](Values& values) {
    values.at("step1." + kKeys)[7] += static_cast<float>(3e-3 * movement);
  });
  EXPECT_FALSE(verified(folder).passed());
}

TEST_F(TrajectoryFolder, OfAnotherFamilyIsRefusedByName) {
  const std::string folder = folder_of("llama_sgd");
  const std::string config = directory_ / "hf/llama/config.json";
  std::ofstream(config) << R"({"model_type": "mamba"})";
  std::ofstream(folder + "/case.json")
      << R"({"start": "../hf/llama", "flags": {"moe-aux-loss-coeff": 0.9}})";
  try {
    verify_trajectory(folder, {});
    FAIL() << "no error";
  } catch (const Error& error) {
    for (const std::string& part :
         {folder + "/case.json", std::string("'mamba'"), std::string("supported: gpt2, llama, ")})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST_F(TrajectoryFolder, NoticesASurplusTensorAndAnUnknownFlag) {
  const std::string folder = folder_of("llama_sgd");
  change_tensors(folder + "/expected.safetensors",
                 [](Values& values) { values["exp_avg.nothing"] = {1}; });
  const Report report = verified(folder);
  ASSERT_EQ(report.failures().size(), 1u) << report.text();
  EXPECT_NE(report.failures()[0].find("exp_avg.nothing"), std::string::npos);

  std::ofstream(folder + "/case.json")
      << R"({"start": "../hf/llama", "flags": {"lion-beta1": 0.9}})";
  EXPECT_THROW(verify_trajectory(folder, {}), Error);
}

}  // namespace
}  // namespace megatron::selftest
