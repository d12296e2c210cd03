// PyPI's transformers opens this program's output: for every family that it supports, a directory
// with our initial values gives our logits, and so does what `megatron quantize` writes; PEFT opens
// trained adapters. Excluded are nemotron-nas, whose class transformers does not ship, and
// megatron, this program's own type. MEGATRON_TEST_PYTHON: a Python that has torch, transformers
// and PEFT; without it they are installed.
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>

#include "base/files.h"
#include "base/tolerances.h"
#include "checkpoint/model_directory.h"
#include "checkpoint/save.h"
#include "golden/inference/support.h"
#include "golden/selftest/support.h"
#include "golden/training/support.h"
#include "training/model_source.h"
#include "unit/models/family_models.h"

namespace megatron::training {
namespace {

const std::string kComparison = MEGATRON_TEST_SOURCES "/slow/training/transformers_logits.py";

struct Ended {
  bool well;
  std::string text;
};

Ended shell(const std::string& command) {
  FILE* const pipe = popen((command + " 2>&1").c_str(), "r");
  Ended ended{false, ""};
  for (int c; (c = std::fgetc(pipe)) != EOF;) ended.text += static_cast<char>(c);
  const int status = pclose(pipe);
  ended.well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return ended;
}

// Sets initial values with a wide spread, so that logits differ, and varied biases and norms.
void fill(models::Stage& model, Stream& stream) {
  models::initialize(model, 7, stream);
  for (parallel::ParameterSpec* placed : model.parameters()) {
    Tensor& value = placed->parameter.value;
    std::vector<double> values = to_doubles(value);
    const RandomStream noise(11, placed->parameter.name);
    for (size_t i = 0; i < values.size(); ++i) values[i] += 0.1 * noise.normal(i);
    copy_from(value, std::span<const double>(values));
  }
}

// Golden directories, and features that other models of a family have.
std::map<std::string, Json> configs() {
  std::map<std::string, Json> all;
  for (const char* family : testing::kFamilyDirectories)
    all[family] = testing::family_config(family);
  for (const auto& [name, family, changes] :
       {std::tuple{"falcon_7b", "falcon",
                   R"({"new_decoder_architecture": false, "num_ln_in_parallel_attn": 1,
                       "multi_query": true, "num_kv_heads": 1})"},
        {"falcon_sequential", "falcon",
         R"({"new_decoder_architecture": false, "num_ln_in_parallel_attn": 1, "bias": true,
             "multi_query": false, "num_kv_heads": 4, "parallel_attn": false})"},
        {"falcon_one_norm", "falcon", R"({"num_ln_in_parallel_attn": 1})"},
        {"gpt_neox_sequential", "gpt_neox",
         R"({"use_parallel_residual": false, "attention_bias": false,
             "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}})"},
        {"nemotron_whole_heads", "nemotron",
         R"({"mlp_bias": true,
             "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}})"},
        {"mistral_unlimited", "mistral", R"({"sliding_window": null})"},
        {"starcoder2_plain", "starcoder2", R"({"use_bias": false, "sliding_window": null})"},
        {"gemma2_unlike_heads", "gemma2",
         R"({"query_pre_attn_scalar": 168, "attn_logit_softcapping": null})"},
        {"cohere2_global", "cohere2",
         R"({"layer_types": ["full_attention", "full_attention", "sliding_attention",
                             "full_attention"]})"},
        {"granite_biases", "granite", R"({"attention_bias": true, "mlp_bias": true})"},
        {"qwen3_windows", "qwen3",
         R"({"use_sliding_window": true, "sliding_window": 5, "attention_bias": true,
             "layer_types": ["full_attention", "sliding_attention", "full_attention"]})"}}) {
    Json config = testing::family_config(family);
    const Json changed = Json::parse(changes);
    for (const auto& [key, value] : changed.as_object()) config.set(key, value);
    all[name] = std::move(config);
  }
  return all;
}

// Writes expected.json next to a model: tokens and our logits. Sequences are longer than the
// windows and, if a family's angles depend on the length, than the original context.
// model: m's own, or another one of its kind.
void write_expected(testing::RandomModel& m, const models::Stage& model,
                    const std::string& directory) {
  const testing::Tokens tokens = testing::random_tokens(40, m.model.model()->vocab_size(), 3);
  const nn::Batch batch = testing::whole_batch(m, {tokens});
  Tape tape(m.runtime, Tape::Mode::infer);
  const Bundle out = models::forward(model, tape, {}, batch, models::Phase::evaluate);
  const std::vector<float> logits = to_floats(model.loss_logits(tape, out));
  Json expected(Json::Object{});
  expected.set("tokens", Json::Array(tokens.begin(), tokens.end()));
  expected.set("logits", Json::Array(logits.begin(), logits.end()));
  write_file(directory + "/expected.json", expected.dump());
}

void write_model(Json config, const std::string& directory) {
  config.set("initializer_range", 0.2);
  testing::RandomModel m(models::model_from_config_json(config), DType::f32);
  fill(m.model, m.runtime.stream());
  checkpoint::save(directory,
                   {.config = m.model.model()->config_json(DType::f32),
                    .model = checkpoint::held(models::tensors_of(m.model))},
                   m.runtime.stream());
  write_expected(m, m.model, directory);
}

void megatron(const std::string& arguments) {
  const Ended done = shell(std::string(MEGATRON_BINARY) + " " + arguments);
  ASSERT_TRUE(done.well) << arguments << "\n" << done.text;
}

// Writes expected.json of the model in `from` to `directory`.
void write_expected_of(const std::string& from, const std::string& directory) {
  const checkpoint::ModelDirectory read(from);
  testing::RandomModel m(models::model_from_config_json(read.config()), DType::f32);
  const auto loaded = load_model(read, m.model.model(), m.runtime, DType::f32, 0);
  write_expected(m, *loaded, directory);
}

// Quantizes a directory of the golden vectors.
void write_quantized(const std::string& family, const std::string& directory) {
  megatron("quantize --model " + testing::vectors("hf/" + family) + " --save " + directory);
  if (!::testing::Test::HasFatalFailure()) write_expected_of(directory, directory);
}

// Trains an adapter of a directory of the golden vectors; returns its directory. Our logits are
// those of the merged model.
std::string train_adapter(const std::string& family, const std::string& flags,
                          const std::string& folder) {
  const std::string base = testing::vectors("hf/" + family), adapter = folder + "/iter_0000003",
                    merged = folder + "/merged";
  megatron("train --model " + base + " --finetune --mock-data --seq-length 16 " + flags +
           " --micro-batch-size 2 --global-batch-size 4 --train-iters 3 --lr 3e-2 --threads 1" +
           " --lr-decay-style constant --save " + folder);
  if (::testing::Test::HasFatalFailure()) return "";
  megatron("merge-adapter --model " + base + " --adapter " + adapter + " --save " + merged);
  if (!::testing::Test::HasFatalFailure()) write_expected_of(merged, adapter);
  return adapter;
}

class Transformers : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* given = std::getenv("MEGATRON_TEST_PYTHON")) {
      python_ = given;
      return;
    }
    const Ended made = shell("python3 -m venv " + (folder_ / "venv") + " && " + python_ +
                             " -m pip install -q torch transformers peft");
    if (!made.well)
      GTEST_SKIP() << "python3 -m venv and pip install torch transformers peft failed here "
                      "(they need python3-venv, PyPI and 6 GB): "
                   << made.text;
  }

  // Opens the directories. Returns the class of each, by the directory's name.
  std::map<std::string, std::string> open(const std::string& directories) {
    const Ended read = shell(python_ + " " + kComparison + directories);
    EXPECT_TRUE(read.well) << read.text;
    // One line each: name, class, number of missing or surplus tensors, largest difference, largest
    // logit.
    std::map<std::string, std::string> seen;
    std::istringstream lines(read.text);
    std::string mark, model, type;
    for (std::string line; std::getline(lines, line);) {
      int64_t wrong = -1;
      double difference = 1, largest = 0;
      std::istringstream words(line);
      if (!(words >> mark >> model >> type >> wrong >> difference >> largest) || mark != "model")
        continue;
      seen[model] = type;
      EXPECT_EQ(wrong, 0) << line;
      EXPECT_LE(difference, tolerance::kGoldenLogitsAbsolute) << line;
      EXPECT_GT(largest, 0.5) << line;
      std::puts(line.c_str());
    }
    return seen;
  }

  const TemporaryDirectory folder_;
  std::string python_ = folder_ / "venv/bin/python";
};

TEST_F(Transformers, OpensEveryFamilyAndGivesOurLogits) {
  std::string directories;
  const std::map<std::string, Json> all = configs();
  for (const auto& [name, config] : all) {
    write_model(config, folder_ / name);
    directories += " " + (folder_ / name);
  }
  const auto seen = open(directories);
  for (const auto& [name, config] : all) {
    ASSERT_TRUE(seen.contains(name)) << name;
    EXPECT_EQ(seen.at(name), config["architectures"].as_array()[0].as_string());
  }
}

TEST_F(Transformers, OpensQuantizedDirectoriesAndGivesOurLogits) {
  std::string directories;
  for (const char* family : {"llama", "qwen3_moe", "deepseek_v3"}) {
    write_quantized(family, folder_ / family);
    if (HasFatalFailure()) return;
    directories += " " + (folder_ / family);
  }
  EXPECT_EQ(open(directories).size(), 3u);
}

TEST_F(Transformers, PeftOpensTrainedAdaptersAndGivesOurLogits) {
  const std::map<std::string, std::pair<std::string, std::string>> all = {
      {"lora", {"llama", "--lora-rank 4 --lora-alpha 8 --lora-target all-linear"}},
      {"dora", {"qwen2", "--lora-rank 3 --use-dora --use-rslora --lora-target q_proj down_proj"}},
      {"columns", {"gpt2", "--lora-rank 4 --lora-target c_attn c_fc --lora-bias lora_only"}},
      {"experts",
       {"qwen3_moe",
        "--lora-rank 2 --lora-target o_proj --lora-target-parameters experts.gate_up_proj "
        "experts.down_proj"}}};
  std::string directories;
  for (const auto& [name, what] : all) {
    directories += " " + train_adapter(what.first, what.second, folder_ / name);
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(open(directories).size(), all.size());
}

}  // namespace
}  // namespace megatron::training
