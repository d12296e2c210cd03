// Each file of recipes/: its model has the published tensors, a rank fits the machine that it
// names, and a small model with all features of its family trains.
#include "settings/recipes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <regex>
#include <set>

#include "base/files.h"
#include "cli/options.h"
#include "golden/cli/process.h"
#include "models/model.h"
#include "post_training/tasks.h"
#include "settings/settings.h"
#include "text.h"
#include "training/plan/make_plan.h"
#include "training/trainer.h"

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;

std::string test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::ranges::replace(name, '.', '_');
  return name;
}

class Recipes : public ::testing::TestWithParam<std::string> {};

// Returns the number after `label` in the recipe's comment, without its commas.
double stated(const std::string& recipe, const std::string& label) {
  const std::string text(settings::recipe_text(recipe));
  std::smatch match;
  if (!std::regex_search(text, match, std::regex("\n# " + label + ": ([0-9,]+)")))
    throw Error("recipes/" + recipe + ".yaml has no comment '# " + label + ": NUMBER'");
  std::string number = match[1];
  std::erase(number, ',');
  return std::stod(number);
}

settings::TrainSettings settings_of(Words arguments) {
  settings::TrainSettings settings;
  Fields fields = settings.fields();
  std::vector<std::string> notes;
  cli::parse_training("train", "", fields, arguments, notes);
  return settings;
}

models::Model model_named(const std::string& name) {
  return models::model_from_config_json(Json::parse(*settings::model_config_text(name)));
}

// Parameters used per token: all except the experts that the router does not choose.
int64_t active_parameters(const models::Model& model) {
  const models::ModelFacts& facts = model->facts();
  const models::ExpertFacts& experts = *facts.experts;
  const int64_t width = experts.each.width, hidden = facts.hidden_size,
                biases = experts.each.bias ? 2 * width + hidden : 0;
  return facts.parameters - std::ranges::count(experts.layers, true) *
                                (experts.count - experts.chosen) * (3 * hidden * width + biases);
}

// Discards printed output during its lifetime.
struct Quiet {
  Quiet() {
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
  }
  ~Quiet() {
    ::testing::internal::GetCapturedStdout();
    ::testing::internal::GetCapturedStderr();
  }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
};

// Number and kind of the GPUs in a name such as "..._8xh100".
struct Machine {
  int count = 0;
  std::string what;
};
Machine machine_of(const std::string& recipe) {
  std::smatch match;
  const std::regex suffix("_([0-9]+)(xa100|xh100|xh200|cpu)$");
  if (!std::regex_search(recipe, match, suffix))
    throw Error(recipe + " does not end in the number and name of a machine's GPUs, or in cpu");
  return {std::stoi(match[1]), match[2]};
}

TEST_P(Recipes, HaveThePublishedTensorsAndFit) {
  const Machine machine = machine_of(GetParam());
  const settings::TrainSettings s = settings_of({"--recipe", GetParam()});
  // Usable gigabytes of either GPU with 80 GB, and of one with 141 GB.
  const double usable = machine.what == "xh200" ? 140 : 79;
  const plan::Plan plan = training::make_plan(
      s, {.task = post_training::make_task(s.data), .samples = false, .device_memory = usable});
  const int64_t adapters = s.adapters.any() ? plan.trained.value() : 0;
  EXPECT_EQ(static_cast<double>(plan.parameter_count() - adapters),
            stated(GetParam(), "Parameters"));
  if (s.run.model_config) {
    const models::Model model = model_named(*s.run.model_config);
    if (model->facts().experts) {
      EXPECT_EQ(static_cast<double>(active_parameters(model)), stated(GetParam(), "Active"));
    }
  }
  int64_t rank = 0;
  for (const plan::MemoryUse& stage : plan.stages)
    rank =
        std::max(rank, stage.arena_bytes() + (plan.gpu ? plan::GpuMemory::kOverhead : stage.host));
  const double stated_bytes = 1e9 * stated(GetParam(), "Memory");
  EXPECT_NEAR(static_cast<double>(rank), stated_bytes, 0.5e9 + 0.05 * stated_bytes);
  if (machine.what == "cpu") {
    EXPECT_EQ(plan.device, "cpu");
    EXPECT_EQ(plan.ranks * plan.threads, machine.count);
    return;
  }
  EXPECT_EQ(plan.device, "cuda");
  EXPECT_EQ(plan.ranks, machine.count);
  EXPECT_LT(static_cast<double>(rank), 0.9 * usable * (1 << 30));
}

TEST_P(Recipes, TwinsTrain) {
  const settings::TrainSettings s = settings_of({"--recipe", "twins/" + GetParam()});
  const Quiet quiet;
  training::TrainHooks hooks;
  hooks.peak = 1e12;
  hooks.task = post_training::make_task(s.data);
  std::vector<double> losses;
  hooks.after_step = [&](const training::IterationReport& r) { losses.push_back(r.loss); };
  const training::TrainResult result = training::train(s, hooks);
  EXPECT_LT(result.model->parameter_count(), 1000000);
  // A model with one block a layer has one of each kind.
  const models::ModelFacts& facts = result.model->facts();
  EXPECT_EQ(facts.num_layers - facts.encoder_layers, facts.family == "nemotron_h" ? 4 : 2);
  ASSERT_EQ(losses.size(), 3u);
  // The loss of three small steps stays near that of 512 equally likely tokens, and of the two
  // labels of pairs.
  const double expected = std::log(512) + (facts.pair_head ? std::log(2) : 0);
  for (const double loss : losses) EXPECT_NEAR(loss, expected, 0.1);
}

INSTANTIATE_TEST_SUITE_P(All, Recipes, ::testing::ValuesIn(settings::recipe_names()), test_name);

// A model described by --model-config is saved as a directory of its family, and a run continues
// from it.
TEST(ModelConfig, IsSavedInItsFamily) {
  const Workplace place;
  const auto run = [&](const Words& more) {
    const Quiet quiet;
    training::TrainHooks hooks;
    hooks.peak = 1e12;
    const auto result = training::train(
        settings_of(with({"--recipe", "twins/gemma2_9b_8xh100", "--save", place / "run", "--load",
                          place / "run", "--vocab-size", "300", "--lr-decay-iters", "5"},
                         more)),
        hooks);
    return result.iterations.size();
  };
  EXPECT_EQ(run({}), 3u);
  const Json config = Json::read(place / "run/iter_0000003/config.json");
  EXPECT_EQ(config["model_type"].as_string(), "gemma2");
  EXPECT_EQ(config["vocab_size"].as_integer(), 300);
  EXPECT_EQ(config["final_logit_softcapping"].as_number(), 30);
  EXPECT_EQ(run({"--train-iters", "5"}), 2u);
  // A file may be given instead of a name and is checked in the same way.
  EXPECT_EQ(run({"--train-iters", "6", "--model-config", place / "run/iter_0000005/config.json"}),
            1u);
  const std::string error =
      error_of([&] { run({"--train-iters", "7", "--model-config", "twins/gemma3_27b"}); });
  expect_contains(error, {"differs from the one in", "run"});
}

class PublishedModels : public ::testing::TestWithParam<std::string> {};

// Collects the keys of a nested object with their values, but only the keys of sizes. The contents
// of a list are merged.
void flatten(const Json& json, const std::string& key, std::set<std::string>& lines) {
  static const std::set<std::string> kSizes = {"attention-chunk-size",
                                               "count",
                                               "embedding-multiplier",
                                               "encoder-layers",
                                               "ffn-hidden-size",
                                               "hidden-size",
                                               "kv-channels",
                                               "kv-lora-rank",
                                               "mamba-head-dim",
                                               "mamba-num-groups",
                                               "mamba-num-heads",
                                               "mamba-state-dim",
                                               "moe-router-group-topk",
                                               "moe-router-num-groups",
                                               "moe-router-topk",
                                               "moe-shared-expert-intermediate-size",
                                               "num-attention-heads",
                                               "num-experts",
                                               "num-layers",
                                               "num-query-groups",
                                               "output-multiplier",
                                               "q-lora-rank",
                                               "qk-head-dim",
                                               "qk-pos-emb-head-dim",
                                               "softmax-scale",
                                               "v-head-dim",
                                               "vocab-size",
                                               "window-size"};
  if (json.is_object()) {
    for (const auto& [name, value] : json.as_object()) flatten(value, name, lines);
  } else if (json.is_array()) {
    for (const Json& item : json.as_array()) flatten(item, key, lines);
  } else {
    lines.insert(kSizes.contains(key) ? key : key + " " + json.dump());
  }
}

// Returns whether query heads share key heads, whether all heads together are as wide as the hidden
// size, the same of a state space and twice the hidden size, and whether its heads have one group.
std::array<bool, 4> proportions(const models::Model& model) {
  const models::ModelFacts facts = model->facts();
  std::array<bool, 4> of{};
  if (const auto& a = facts.attention) {
    of[0] = a->key_heads != a->heads;
    of[1] = a->head_size * a->heads == facts.hidden_size;
  }
  if (const auto& s = facts.state_space) {
    of[2] = s->heads * s->head_size == 2 * facts.hidden_size;
    of[3] = s->groups == 1;
  }
  return of;
}

TEST_P(PublishedModels, HaveTwinsOfTheSameKind) {
  const models::Model whole = model_named(GetParam()), twin = model_named("twins/" + GetParam());
  std::set<std::string> of_whole, of_twin;
  flatten(whole->describe(), "", of_whole);
  flatten(twin->describe(), "", of_twin);
  EXPECT_EQ(of_whole, of_twin);
  EXPECT_EQ(proportions(whole), proportions(twin));
  EXPECT_EQ(whole->family(), twin->family());
}

INSTANTIATE_TEST_SUITE_P(All, PublishedModels, ::testing::ValuesIn(settings::model_config_names()),
                         test_name);

}  // namespace
}  // namespace megatron::testing
