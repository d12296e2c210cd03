// LoRA's configuration: files that PEFT wrote, the modules they adapt, and files that are refused.
#include "models/adapters/lora_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/files.h"
#include "text.h"

namespace megatron::models {
namespace {

using megatron::testing::error_of;
using megatron::testing::expect_contains;

Json adapter_file() {
  return Json::parse(R"({"peft_type": "LORA", "r": 4, "lora_alpha": 8,
                         "target_modules": ["q_proj", "v_proj"]})");
}

// The file with other values for some keys.
LoraConfig lora(const Json::Object& changes) {
  Json json = adapter_file();
  for (const auto& [key, value] : changes) json.set(key, value);
  return lora_from_json(json, "a.json");
}

Json parsed(std::string_view text) { return Json::parse(text); }

std::optional<ModuleAdapter> linear(const LoraConfig& config, std::string_view module) {
  return adapter_of(config, module, ModuleKind::linear);
}

const std::string kLayer0 = "model.layers.0.", kLayer1 = "model.layers.1.";
const std::string kQ = "self_attn.q_proj", kV = "self_attn.v_proj", kDown = "mlp.down_proj";

// ---- files of PEFT ----

std::string golden(const std::string& name) {
  return std::string(MEGATRON_GOLDEN) + "/adapters/" + name;
}

using Modules = std::vector<std::pair<std::string, ModuleKind>>;

Modules with_layers(const std::string& list, const std::vector<std::string>& in_layer) {
  Modules modules;
  for (const char* layer : {".0.", ".1."})
    for (const std::string& name : in_layer)
      modules.emplace_back(list + layer + name, ModuleKind::linear);
  return modules;
}

Modules modules_of(const std::string& base) {
  if (base.ends_with("gpt2")) {
    Modules gpt2 =
        with_layers("transformer.h", {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"});
    gpt2.emplace_back("transformer.wte", ModuleKind::embedding);
    gpt2.emplace_back("transformer.wpe", ModuleKind::embedding);
    gpt2.emplace_back("lm_head", ModuleKind::output);
    return gpt2;
  }
  Modules llama = with_layers(
      "model.layers", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                       "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"});
  llama.emplace_back("model.embed_tokens", ModuleKind::embedding);
  llama.emplace_back("lm_head", ModuleKind::output);
  return llama;
}

class PeftFile : public ::testing::TestWithParam<const char*> {};

TEST_P(PeftFile, AdaptsItsModules) {
  const std::string path = golden(GetParam()) + "/adapter_config.json";
  const LoraConfig config = lora_from_json(Json::read(path), path);
  const Json expected = Json::read(golden(GetParam()) + "/case.json");
  size_t adapted = 0;
  for (const auto& [module, kind] : modules_of(expected["base"].as_string())) {
    const Json* of = expected["modules"].find(module);
    const auto adapter = adapter_of(config, module, kind);
    ASSERT_EQ(adapter.has_value(), of != nullptr) << module;
    if (of == nullptr) continue;
    ++adapted;
    EXPECT_EQ(adapter->rank, (*of)["r"].as_integer()) << module;
    EXPECT_EQ(adapter->alpha, (*of)["alpha"].as_number()) << module;
    EXPECT_EQ(adapter->scale, (*of)["scale"].as_number()) << module;
  }
  EXPECT_EQ(adapted, expected["modules"].as_object().size());
}

TEST_P(PeftFile, IsWrittenWithTheSameBytes) {
  const std::string path = golden(GetParam()) + "/adapter_config.json";
  const std::string text = read_file(path);
  const LoraConfig config = lora_from_json(Json::read(path), path);
  EXPECT_EQ(to_json(config).dump(2, true) + "\n", text);
  LoraConfig fresh = config;
  fresh.file = Json();
  EXPECT_EQ(to_json(fresh).dump(2, true) + "\n", text) << "also from the value alone";
}

INSTANTIATE_TEST_SUITE_P(Golden, PeftFile,
                         ::testing::Values("all_linear_rslora", "dora", "embedding_and_head",
                                           "gpt2_conv1d", "modules_to_save", "patterns", "qv",
                                           "qwen2_bias", "qwen3_tied", "regex_one_layer"),
                         [](const auto& instance) { return std::string(instance.param); });

// ---- values ----

TEST(LoraConfig, ReadsEveryKey) {
  const LoraConfig c = lora(parsed(R"({
    "lora_dropout": 0.25, "use_rslora": true, "use_dora": true, "fan_in_fan_out": true,
    "bias": "all", "init_lora_weights": "gaussian", "exclude_modules": ["layers.0.q_proj"],
    "layers_to_transform": [1, 3], "layers_pattern": "layers", "rank_pattern": {"v_proj": 2},
    "alpha_pattern": {"v_proj": 0.5}, "modules_to_save": ["score"],
    "trainable_token_indices": {"embed_tokens": [5, 2]}, "base_model_name_or_path": "base",
    "task_type": "SEQ_CLS", "peft_version": "0.20.1.dev0@abc"})")
                                .as_object());
  EXPECT_EQ(c.rank, 4);
  EXPECT_EQ(c.alpha, 8);
  EXPECT_EQ(c.dropout, 0.25);
  EXPECT_TRUE(c.rank_stabilized && c.weight_decomposed && c.fan_in_fan_out && !c.lora_bias);
  EXPECT_EQ(c.bias, LoraBias::all);
  EXPECT_EQ(c.init, LoraInit::gaussian);
  EXPECT_EQ(c.targets.names, (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(c.excluded.names, (std::vector<std::string>{"layers.0.q_proj"}));
  EXPECT_EQ(c.layers_to_transform, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(c.layers_pattern.at(0).text(), "layers");
  EXPECT_EQ(c.rank_pattern.at(0).second, 2);
  EXPECT_EQ(c.alpha_pattern.at(0).second, 0.5);
  EXPECT_EQ(c.modules_to_save, (std::vector<std::string>{"score"}));
  EXPECT_EQ(c.trainable_token_indices.at(0).second, (std::vector<int64_t>{5, 2}));
  EXPECT_EQ(c.base_model, "base");
  EXPECT_EQ(c.task_type, "SEQ_CLS");
  EXPECT_EQ(c.peft_version, "0.20.1.dev0@abc");
  EXPECT_EQ(lora({{"init_lora_weights", false}}).init, LoraInit::random);
  EXPECT_EQ(lora({{"init_lora_weights", "eva"}}).init, LoraInit::standard);
}

TEST(LoraConfig, WritesWhatChangedAndKeepsTheRest) {
  LoraConfig c = lora({{"layers_to_transform", 1},
                       {"a_new_key", 3},
                       {"lora_dropout", 0},
                       {"init_lora_weights", "eva"},
                       {"target_modules", parsed(R"(["v_proj", "q_proj"])")}});
  Json expected = c.file;
  std::ranges::sort(expected.as_object(), {}, &Json::Member::first);
  EXPECT_EQ(to_json(c).dump(), expected.dump()) << "a single layer and an integer stay";
  c.rank = 16;
  c.alpha = 22.5;
  c.modules_to_save = {"lm_head"};
  expected.set("r", 16);
  expected.set("lora_alpha", 22.5);
  expected.set("modules_to_save", Json::Array{"lm_head"});
  std::ranges::sort(expected.as_object(), {}, &Json::Member::first);
  EXPECT_EQ(to_json(c).dump(), expected.dump());
}

TEST(LoraConfig, ReadsWhatItWrites) {
  LoraConfig c{.rank = 3, .alpha = 4.5, .dropout = 0.5, .bias = LoraBias::lora_only};
  c.init = LoraInit::random;
  c.targets.names = {"q_proj"};
  c.excluded.pattern = NamePattern(".*\\.0\\..*");
  c.layers_to_transform = {2};
  c.layers_pattern = {NamePattern("h", NamePattern::Use::layers)};
  c.rank_pattern = {{NamePattern("q_proj", NamePattern::Use::ending), 5}};
  c.alpha_pattern = {{NamePattern("q_proj", NamePattern::Use::ending), 6}};
  c.trainable_token_indices = {{"", {4, 7}}};
  const Json json = to_json(c);
  const LoraConfig back = lora_from_json(json, "a.json");
  EXPECT_EQ(back.file, json);
  EXPECT_EQ(back.layers_pattern, c.layers_pattern);
  EXPECT_EQ(back.excluded, c.excluded);
  LoraConfig value = back;
  value.file = Json();
  EXPECT_EQ(to_json(value), json);
}

// ---- modules ----

TEST(LoraModules, NamesFitWholeOrAfterADot) {
  const LoraConfig c =
      lora({{"target_modules", parsed(R"(["proj", "self_attn.q_proj", "head"])")}});
  EXPECT_TRUE(linear(c, kLayer0 + kQ));
  EXPECT_FALSE(linear(c, kLayer0 + kV)) << "'proj' ends the word, but no dot precedes it";
  EXPECT_TRUE(linear(c, "a.proj"));
  EXPECT_TRUE(adapter_of(c, "head", ModuleKind::output));
  EXPECT_FALSE(adapter_of(c, "lm_head", ModuleKind::output));
}

TEST(LoraModules, AllLinearLeavesOutTheHead) {
  for (const char* words : {"all-linear", "All-Linear"}) {
    const LoraConfig c =
        lora({{"target_modules", words}, {"exclude_modules", parsed(R"(["v_proj"])")}});
    EXPECT_TRUE(linear(c, kLayer0 + kDown));
    EXPECT_FALSE(linear(c, kLayer0 + kV));
    EXPECT_FALSE(adapter_of(c, "model.embed_tokens", ModuleKind::embedding));
    EXPECT_FALSE(adapter_of(c, "lm_head", ModuleKind::output));
  }
  LoraConfig c = lora({});
  c.file = Json();
  c.targets = {};
  c.all_linear = true;
  EXPECT_EQ(to_json(c)["target_modules"], Json("all-linear"));
}

TEST(LoraModules, LayersRestrictNamesOfModules) {
  const LoraConfig c = lora(
      {{"layers_to_transform", parsed("[1]")}, {"target_modules", parsed(R"(["q_proj", "gate_proj",
                                                           "model.layers.0.self_attn.v_proj"])")}});
  EXPECT_FALSE(linear(c, kLayer0 + kQ));
  EXPECT_TRUE(linear(c, kLayer1 + kQ));
  EXPECT_TRUE(linear(c, kLayer0 + kV)) << "a whole name needs no layer";
  EXPECT_TRUE(linear(c, kLayer1 + "mlp.experts.0.gate_proj")) << "the layer, not the expert";
  EXPECT_FALSE(linear(c, kLayer0 + "mlp.experts.1.gate_proj"));
  EXPECT_FALSE(linear(c, "model.q_proj")) << "it has no layer";
}

TEST(LoraModules, LayersPatternNamesTheListOfLayers) {
  const Json targets = parsed(R"(["c_attn"])");
  const LoraConfig one =
      lora({{"layers_to_transform", 1}, {"layers_pattern", "h"}, {"target_modules", targets}});
  EXPECT_TRUE(linear(one, "transformer.h.1.attn.c_attn"));
  EXPECT_FALSE(linear(one, "transformer.h.0.attn.c_attn"));
  EXPECT_FALSE(linear(one, "transformer.layers.1.attn.c_attn"));
  const LoraConfig two = lora({{"layers_to_transform", 1},
                               {"layers_pattern", parsed(R"j(["blocks", "(?:h|layers)"])j")},
                               {"target_modules", targets}});
  EXPECT_TRUE(linear(two, "transformer.layers.1.attn.c_attn"));
  EXPECT_TRUE(linear(two, "transformer.blocks.1.attn.c_attn"));
  const LoraConfig hidden =
      lora({{"layers_to_transform", 1}, {"layers_pattern", "(h)"}, {"target_modules", targets}});
  expect_contains(error_of([&] { linear(hidden, "transformer.h.1.attn.c_attn"); }),
                  {"layers_pattern", "(h)", "(?:a|b)"});
}

TEST(LoraModules, PatternsOfRanksAndAlphasFitTheEnd) {
  const LoraConfig c =
      lora({{"target_modules", "all-linear"},
            {"use_rslora", true},
            {"rank_pattern", parsed(R"({"^model.layers.0.mlp.down_proj": 16, "(q|v)_proj": 9})")},
            {"alpha_pattern", parsed(R"({"layers\\.1\\..*": 30, "proj": 1})")}});
  const auto expect = [&](const std::string& module, int64_t rank, double alpha) {
    const ModuleAdapter expected{
        .rank = rank, .alpha = alpha, .scale = alpha / std::sqrt(static_cast<double>(rank))};
    EXPECT_EQ(linear(c, module), expected) << module;
  };
  expect(kLayer0 + kDown, 16, 8);
  expect(kLayer1 + kDown, 4, 30);
  expect("x." + kLayer0 + kDown, 4, 8);
  expect(kLayer0 + kQ, 9, 8);
  expect(kLayer1 + kV, 9, 30);
}

TEST(LoraModules, OverlappingPatternsCountAsPeftSortsThem) {
  const auto with = [](std::string_view patterns) {
    return lora({{"rank_pattern", parsed(patterns)}});
  };
  EXPECT_EQ(linear(with(R"({"layers.0.*": 2, "q_proj": 3})"), kLayer0 + kQ)->rank, 2);
  EXPECT_EQ(linear(with(R"({"q_proj": 3, "layers.0.*": 3})"), kLayer0 + kQ)->rank, 3);
  const LoraConfig unsorted = with(R"({"q_proj": 3, "layers.0.*": 2})");
  EXPECT_EQ(linear(unsorted, kLayer1 + kQ)->rank, 3) << "one alone fits";
  expect_contains(error_of([&] { linear(unsorted, kLayer0 + kQ); }),
                  {"rank_pattern", "'q_proj' = 3", "'layers.0.*' = 2", kLayer0 + kQ});
}

TEST(LoraModules, SavedModulesHaveNoAdapters) {
  const LoraConfig c = lora({{"target_modules", "all-linear"},
                             {"modules_to_save", parsed(R"(["norm", "mlp", "embed_tokens"])")}});
  EXPECT_TRUE(saves_module(c, "model.norm"));
  EXPECT_TRUE(saves_module(c, kLayer0 + "input_layernorm")) << "its name ends with 'norm'";
  EXPECT_TRUE(saves_module(c, kLayer0 + kDown)) << "a part of 'mlp'";
  EXPECT_TRUE(saves_module(c, "model.embed_tokens"));
  EXPECT_FALSE(saves_module(c, kLayer0 + kQ));
  EXPECT_FALSE(linear(c, kLayer0 + kDown));
  EXPECT_TRUE(linear(c, kLayer0 + kQ));
  const LoraConfig both = lora({{"modules_to_save", parsed(R"(["_proj"])")}});
  expect_contains(error_of([&] { linear(both, kLayer0 + kQ); }), {kLayer0 + kQ, "modules_to_save"});
}

TEST(LoraModules, ParametersFitByNameAndPattern) {
  const LoraConfig c = lora({{"target_modules", parsed("[]")},
                             {"target_parameters", parsed(R"(["mlp.experts.gate_up_proj"])")},
                             {"rank_pattern", parsed(R"({"gate_up_proj": 2})")}});
  EXPECT_EQ(adapter_of_parameter(c, kLayer0 + "mlp.experts.gate_up_proj"),
            (ModuleAdapter{.rank = 2, .alpha = 8, .scale = 4}));
  EXPECT_FALSE(adapter_of_parameter(c, kLayer0 + "mlp.experts.down_proj"));
  EXPECT_FALSE(linear(c, kLayer0 + kQ));
}

// ---- Python's regular expressions ----

TEST(NamePattern, MatchesAsPythonDoes) {
  const auto fits = [](const char* pattern, std::string_view name) {
    return NamePattern(pattern).fits(name);
  };
  EXPECT_TRUE(fits("a|ab", "ab")) << "the whole name, by any alternative";
  EXPECT_FALSE(fits("b", "ab"));
  EXPECT_TRUE(fits("a{,2}b\\Z", "aab"));
  EXPECT_FALSE(fits("a{,2}b", "aaab"));
  EXPECT_TRUE(fits("[[a]b]", "ab]")) << "a class of '[' and 'a'";
  EXPECT_TRUE(fits("[]&&x]", "&"));
  EXPECT_TRUE(fits("(?i)A(?P<n>b)(?P=n)", "aBB"));
  EXPECT_TRUE(fits("\\x78(?i:Y)\\u007a", "xyz"));
  EXPECT_TRUE(fits("(a)\\1(?=b)b", "aab"));
  const NamePattern end("(q|k)_proj", NamePattern::Use::ending);
  EXPECT_TRUE(end.fits("q_proj"));
  EXPECT_TRUE(end.fits("a.b.k_proj"));
  EXPECT_FALSE(end.fits("a.xk_proj"));
  EXPECT_FALSE(end.fits("k_proj.a"));
}

TEST(NamePattern, RefusesWhatPythonDoes) {
  for (const char* bad : {"a)(b", "(a", "*", "\\p{L}", "\\Qa", "\\K", "(?|a)", "(?R)", "(*ACCEPT)",
                          "a(?i)b", "(?<n>a)", "a\\", "\\x4g", "\\u00"})
    expect_contains(error_of([&] { NamePattern pattern(bad); }), {"regular expression", bad});
  expect_contains(error_of([] { NamePattern("(?i)a", NamePattern::Use::ending); }), {"(?i:...)"});
}

// ---- refused files ----

struct Refused {
  const char* key;
  const char* value;  // "": the key is absent
  std::vector<std::string_view> parts;
};

TEST(LoraConfig, RefusesByName) {
  const Refused kRefused[] = {
      {"peft_type", "\"ADALORA\"", {"peft_type", "ADALORA", "LORA"}},
      {"peft_type", "", {"peft_type"}},
      {"r", "", {"'r'"}},
      {"r", "0", {"r = 0", "[1, "}},
      {"r", "2.5", {"r = 2.5", "integer"}},
      {"r", "2000000", {"r = 2000000", "1048576"}},
      {"lora_alpha", "", {"lora_alpha"}},
      {"lora_alpha", "0", {"lora_alpha = 0"}},
      {"lora_alpha", "-1", {"lora_alpha = -1"}},
      {"lora_alpha", "\"8\"", {"lora_alpha", "\"8\"", "number"}},
      {"rank_pattern", R"({"q": 0})", {"rank_pattern 'q' = 0"}},
      {"rank_pattern", R"(["q"])", {"rank_pattern"}},
      {"rank_pattern", R"({"(q": 1})", {"a.json", "rank_pattern", "(q"}},
      {"alpha_pattern", R"({"q": 0})", {"alpha_pattern 'q' = 0"}},
      {"lora_dropout", "1", {"lora_dropout = 1", "[0, 1)"}},
      {"target_modules", "", {"target_modules", "target_parameters"}},
      {"target_modules", "[]", {"nothing to train", "target_modules"}},
      {"target_modules", "\"(\"", {"a.json", "target_modules", "("}},
      {"target_modules", "\"\"", {"target_modules"}},
      {"target_modules", "[1]", {"target_modules", "[1]"}},
      {"exclude_modules", "3", {"exclude_modules = 3"}},
      {"layers_pattern", "\"h\"", {"layers_pattern", "layers_to_transform"}},
      {"layers_to_transform", "[-1]", {"layer -1", "layers_to_transform"}},
      {"bias", "\"some\"", {"bias", "some", "lora_only"}},
      {"use_dora", "1", {"use_dora = 1", "true or false"}},
      {"task_type", "\"SEQ_2_SEQ_LM\"", {"task_type", "SEQ_2_SEQ_LM", "CAUSAL_LM"}},
      {"init_lora_weights", "\"pissa\"", {"init_lora_weights", "pissa", "gaussian"}},
      {"init_lora_weights", "\"olora\"", {"init_lora_weights", "olora", "path_initial_model"}},
      {"init_lora_weights", "\"loftq\"", {"init_lora_weights", "loftq"}},
      {"use_bdlora", R"({"nblocks": 2})", {"use_bdlora", "nblocks", "block-diagonal"}},
      {"use_qalora", "true", {"use_qalora", "QALoRA"}},
      {"arrow_config", R"({"top_k": 3})", {"arrow_config", "Arrow"}},
      {"alora_invocation_tokens", "[5]", {"alora_invocation_tokens", "[5]"}},
      {"layer_replication", "[[0, 2]]", {"layer_replication"}},
      {"kasa_config", R"({"beta": 1})", {"kasa_config"}},
      {"velora_config", R"({"num_groups": 1})", {"velora_config"}},
      {"monteclora_config", R"({"num_samples": 1})", {"monteclora_config"}},
      {"ensure_weight_tying", "true", {"ensure_weight_tying"}},
      {"trainable_token_indices", "[3, 3]", {"trainable_token_indices", "[3, 3]"}},
      {"trainable_token_indices", "[-3]", {"trainable_token_indices", "[-3]"}},
      {"trainable_token_indices", "\"a\"", {"trainable_token_indices", "\"a\""}},
  };
  for (const auto& [key, value, parts] : kRefused) {
    Json json = adapter_file();
    if (*value != '\0') json.set(key, Json::parse(value));
    if (*value == '\0')
      std::erase_if(json.as_object(), [&](const Json::Member& m) { return m.first == key; });
    const std::string error = error_of([&] { lora_from_json(json, "a.json"); });
    EXPECT_TRUE(megatron::testing::has(error, "a.json")) << key << " = " << value << ": " << error;
    for (const auto part : parts) EXPECT_TRUE(megatron::testing::has(error, part)) << error;
  }
  LoraConfig nan = lora({});
  nan.alpha = std::nan("");
  expect_contains(error_of([&] { check(nan, "a.json"); }), {"lora_alpha = nan"});
}

TEST(LoraConfig, RefusesCombinationsThatPeftRefuses) {
  const auto refused = [](const char* changes, std::initializer_list<std::string_view> parts) {
    expect_contains(error_of([&] { lora(parsed(changes).as_object()); }), parts);
  };
  refused(R"({"target_modules": ".*", "layers_to_transform": [0]})",
          {"layers_to_transform", "pattern"});
  refused(R"({"target_modules": "all-linear", "layers_to_transform": [0]})",
          {"layers_to_transform", "all-linear"});
  refused(R"({"lora_bias": true, "use_dora": true})", {"lora_bias", "use_dora"});
  refused(R"({"lora_bias": true, "init_lora_weights": "gaussian"})", {"lora_bias", "gaussian"});
  refused(R"({"target_parameters": ["experts.a"], "lora_dropout": 0.5})",
          {"target_parameters", "lora_dropout", "0.5"});
  refused(R"({"target_parameters": ["experts.a"], "use_dora": true})",
          {"target_parameters", "use_dora"});
  refused(R"({"trainable_token_indices": [1], "modules_to_save": ["embed_tokens"]})",
          {"embed_tokens", "trainable_token_indices", "modules_to_save"});
}

}  // namespace
}  // namespace megatron::models
