// Shapes from flags and from config.json: consistent sizes, or an Error that names them.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "models/model_flags.h"
#include "models/stage.h"
#include "unit/models/family_models.h"

namespace megatron::models {
namespace {

Json config_of(const std::string& name) {
  return Json::read(std::string(MEGATRON_GOLDEN) + "/hf/" + name + "/config.json");
}

std::string refusal(const Json& config) {
  try {
    model_from_config_json(config);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string refusal(const std::string& name, std::string_view key, const Json& value) {
  Json config = config_of(name);
  config.set(key, value);
  return refusal(config);
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

TEST(Config, RoundTrips) {
  for (const char* name : {"gpt2", "llama", "llama_tied"}) {
    const Model model = model_from_config_json(config_of(name));
    EXPECT_EQ(model->family(), config_of(name)["model_type"].as_string());
    const Json again = model->config_json(DType::f32);
    EXPECT_EQ(model_from_config_json(again)->config_json(DType::f32), again);
    for (const auto& [key, value] : again.as_object()) {
      if (key == "rope_theta" || key == "n_inner") continue;  // kept under another key, or null
      EXPECT_EQ(value, config_of(name)[key]) << name << " " << key;
    }
  }
}

TEST(Config, NamesWhatIsNotSupported) {
  expect_parts(refusal("llama", "model_type", "mamba"), {"mamba", "gpt2", "llama"});
  expect_parts(refusal("llama", "hidden_act", "mish"), {"mish", "silu"});
  expect_parts(
      refusal("llama", "rope_parameters", Json::parse(R"({"rope_type": "llama3", "factor": 8})")),
      {"llama3", "low_freq_factor"});
  expect_parts(refusal("llama", "rope_parameters", Json::parse(R"({"rope_type": "mrope"})")),
               {"mrope", "default", "yarn"});
  Json older = config_of("llama");
  older.set("rope_parameters", nullptr);
  older.set("rope_scaling", Json::parse(R"({"type": "yarn"})"));
  expect_parts(refusal(older), {"yarn", "factor"});
  expect_parts(refusal("gpt2", "scale_attn_weights", false), {"scale_attn_weights"});
}

TEST(Config, NamesTheKeyOfASuccessorOfDeepSeekV3) {
  for (const char* family : {"deepseek_v2", "deepseek_v3"}) {
    for (const char* key : {"index_n_heads", "index_head_dim", "index_topk"})
      expect_parts(refusal(family, key, 64), {std::string(key) + " = 64", "sparse attention"});
    expect_parts(refusal(family, "compress_ratios", Json::parse("[4, 128]")),
                 {"compress_ratios = [4, 128]", "compressed attention"});
    expect_parts(refusal(family, "hc_mult", 4), {"hc_mult = 4", "hyper-connections"});
    EXPECT_EQ(refusal(family, "index_topk", Json()), "");
  }
  for (const char* type : {"deepseek_v32", "deepseek_v4"})
    expect_parts(refusal("deepseek_v3", "model_type", type), {type, "deepseek_v3"});
}

TEST(Config, RefusesAbsurdSizes) {
  expect_parts(refusal("llama", "num_hidden_layers", int64_t{1} << 40),
               {"num_hidden_layers", "1099511627776", "65536"});
  expect_parts(refusal("gpt2", "n_embd", int64_t{1} << 40), {"n_embd", "1099511627776", "1048576"});
  expect_parts(refusal("gpt2", "n_layer", 0), {"n_layer", "0"});
  expect_parts(refusal("gpt2", "n_positions", 1 << 21), {"n_positions", "2097152", "1048576"});
  expect_parts(refusal("llama4_text", "max_position_embeddings", 1 << 25),
               {"max_position_embeddings", "33554432", "16777216"});
  expect_parts(refusal("llama", "num_key_value_heads", -1), {"num_key_value_heads", "-1"});
  expect_parts(refusal("llama", "num_key_value_heads", 3), {"4", "3"});
  expect_parts(refusal("llama", "vocab_size", 1e300), {"vocab_size"});
  expect_parts(refusal("llama", "vocab_size", "many"), {"vocab_size", "integer", "string"});
  expect_parts(refusal("llama", "head_dim", 7), {"7", "even"});
  expect_parts(refusal("llama", "attention_dropout", 1), {"attention_dropout", "1"});
  expect_parts(refusal("llama", "rms_norm_eps", 0), {"rms_norm_eps", "0"});
}

TEST(Config, NamesAMissingKey) {
  Json config = testing::written_config("nemotron-nas");  // transformers has no such class
  auto& members = config.as_object();
  std::erase_if(members, [](const Json::Member& m) { return m.first == "hidden_size"; });
  expect_parts(refusal(config), {"hidden_size"});
}

std::vector<std::pair<std::string, std::string>> texts_of_all_families() {
  std::vector<std::pair<std::string, std::string>> texts;
  for (const char* name : testing::kFamilyDirectories)
    texts.emplace_back(name, read_file(testing::family_directory(name) + "/config.json"));
  for (const char* name : testing::kEncoderDirectories)
    texts.emplace_back(name, read_file(testing::family_directory(name) + "/config.json"));
  for (const char* name : testing::kEncoderDecoderDirectories)
    texts.emplace_back(name, read_file(testing::family_directory(name) + "/config.json"));
  for (const char* name : {"nemotron-nas", "megatron"})
    texts.emplace_back(name, testing::written_config(name).dump(2));
  return texts;
}

// Every configuration that a family reads can also be written.
void expect_written(const Model& model, const std::string& text) {
  try {
    const Model again = model_from_config_json(model->config_json(DType::f32));
    EXPECT_EQ(again->describe(), model->describe()) << text;
  } catch (const Error& error) {
    ADD_FAILURE() << error.what() << " of\n" << text;
  }
}

// A mutated config.json gives an Error, or a shape with valid sizes: its model can be built on meta
// at no cost, and its config.json can be written.
TEST(Config, FuzzGivesAnErrorOrAValidShape) {
  std::mt19937 random(7);
  const auto pick = [&random](size_t n) { return static_cast<size_t>(random()) % n; };
  int valid = 0, refused = 0;
  std::set<std::string> families;
  for (const auto& [name, text] : texts_of_all_families()) {
    families.insert(Json::parse(text)["model_type"].as_string());
    const std::vector<std::string> inserts = {"-",    "9",  "99999", "0", "1e9", ".",       "null",
                                              "true", "\"", "{",     "[", "NaN", "\\u0000", "\xff"};
    for (int round = 0; round < 150; ++round) {
      std::string mutated = text;
      for (size_t edits = 1 + pick(3); edits > 0; --edits) {
        const size_t at = pick(mutated.size());
        switch (pick(4)) {
          case 0: mutated[at] = static_cast<char>(random()); break;
          case 1: mutated.erase(at, 1 + pick(8)); break;
          case 2: mutated.insert(at, inserts[pick(inserts.size())]); break;
          default: {
            const size_t digit = mutated.find_first_of("0123456789", at);
            if (digit != std::string::npos) mutated.insert(digit, inserts[pick(5)]);
          }
        }
      }
      try {
        const Model model = model_from_config_json(Json::parse(mutated));
        ++valid;
        if (const auto& attention = model->facts().attention) {
          EXPECT_GT(attention->head_size, 0);
          EXPECT_EQ(attention->heads % attention->key_heads, 0);
        }
        if (model->num_layers() > 64) continue;
        Runtime meta({DeviceKind::meta, 0}, 1);
        const auto whole = model.build(meta, DType::f32, 0);
        for (const parallel::ParameterSpec* placed : whole->parameters())
          EXPECT_GT(placed->parameter.value.elements(), 0);
        expect_written(model, mutated);
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  families.insert("kimi_k2");  // reads the files of deepseek_v3
  families.insert("mt5");      // has no directory
  EXPECT_EQ(families.size(), family_names().size());
  EXPECT_GT(valid, 500);
  EXPECT_GT(refused, 500);
}

// Each key with every kind of value and without a value: an Error, or a model that can be written.
TEST(Config, EveryKeyWithEveryKindOfValue) {
  const Json values =
      Json::parse(R"([null, true, false, 0, 1, 3, 50, -1, 0.3, "", "yarn", [], [1], {}])");
  int valid = 0, refused = 0;
  const auto attempt = [&](const Json& config) {
    try {
      expect_written(model_from_config_json(config), config.dump());
      ++valid;
    } catch (const Error&) {
      ++refused;
    }
  };
  for (const auto& [name, text] : texts_of_all_families()) {
    const Json config = Json::parse(text);
    for (const auto& [key, original] : config.as_object()) {
      Json without = config;
      std::erase_if(without.as_object(), [&](const Json::Member& m) { return m.first == key; });
      attempt(without);
      for (const Json& value : values.as_array()) {
        Json changed = config;
        changed.set(key, value);
        attempt(changed);
      }
      if (!original.is_object()) continue;
      for (const auto& [inner, unused] : original.as_object()) {
        for (const Json& value : values.as_array()) {
          Json object = original, changed = config;
          object.set(inner, value);
          changed.set(key, object);
          attempt(changed);
        }
      }
    }
  }
  EXPECT_GT(valid, 500);
  EXPECT_GT(refused, 500);
}

// Flags select the first family that can represent the model, or could without dropout; if none
// can, the program's own family, which can represent any model.
TEST(Config, FlagsHaveAFamily) {
  ModelFlags flags{.num_layers = 1, .hidden_size = 16, .num_attention_heads = 2, .vocab_size = 8};
  EXPECT_EQ(model_from_flags(flags, 8)->family(), "gpt2");
  flags.normalization = nn::Normalization::rms_norm;  // with learned positions, in no family
  const Model own = model_from_flags(flags, 8);
  EXPECT_EQ(own->family(), "megatron");
  EXPECT_EQ(model_from_config_json(own->config_json(DType::f32))->describe(), own->describe());
  flags.position_embedding = PositionEmbedding::rope;
  flags.swiglu = true;
  flags.add_bias_linear = false;
  EXPECT_EQ(model_from_flags(flags, 8)->family(), "llama");
  // Without flags, dropouts get a value that the family can represent.
  EXPECT_EQ(model_from_flags(flags, 8)->facts().hidden_dropout, 0);
  EXPECT_EQ(model_from_flags(flags, 8)->facts().attention_dropout, 0.1);
  EXPECT_NO_THROW(model_from_flags(flags, 8)->config_json(DType::f32));
  flags.hidden_dropout = 0.1;
  EXPECT_EQ(model_from_flags(flags, 8)->family(), "llama");
  try {
    model_from_flags(flags, 8)->config_json(DType::f32);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    expect_parts(error.what(), {"llama", "--hidden-dropout 0.1", "--model-family megatron"});
  }
  flags.model_family = "megatron";
  EXPECT_NO_THROW(model_from_flags(flags, 8)->config_json(DType::f32));
}

// Context lengths of inference: longer than the file's positions if its scaling extends them.
TEST(Config, ContextLengthFollowsTheScaling) {
  const auto length = [](const std::string& name, int64_t positions, const char* scaling) {
    Json config = config_of(name);
    config.set("max_position_embeddings", positions);
    if (*scaling != 0) config.set("rope_scaling", Json::parse(scaling));
    return model_from_config_json(config)->context_length();
  };
  EXPECT_EQ(length("llama", 128, ""), 128);
  constexpr const char* kYarn =
      R"({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128})";
  EXPECT_EQ(length("llama", 128, kYarn), 512);
  EXPECT_EQ(length("llama", 512, kYarn), 512);
  EXPECT_EQ(length("qwen3", 160, kYarn), 512);
  EXPECT_EQ(length("llama", 128, R"({"type": "linear", "factor": 2.5})"), 320);
  EXPECT_EQ(length("llama", 128, R"({"type": "dynamic", "factor": 3})"), 384);
  EXPECT_EQ(length("llama3", 128, ""), 128);
  EXPECT_EQ(length("phi3", 128, ""), 128);
  EXPECT_EQ(length("gemma3_text", 128, ""), 128);  // linear by 8 in the file
  EXPECT_EQ(length("gpt_oss", 128, ""), 128);      // YaRN by 4 over 32
}

// As in transformers, such a block means no scaling.
TEST(Config, AFactorWithoutATypeScalesNothingAndIsTold) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    Json config = config_of("llama");
    config.set(key, Json::parse(R"({"factor": 4.0, "rope_theta": 10000.0})"));
    ::testing::internal::CaptureStderr();
    const Model model = model_from_config_json(config);
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(model->describe(), model_from_config_json(config_of("llama"))->describe());
    EXPECT_NE(log.find(std::string(key) + ".factor = 4"), std::string::npos) << log;
  }
}

// transformers reads the key only for Gemma 2.
TEST(Config, Gemma3HasNoSoftCapOfScores) {
  Json config = config_of("gemma3_text");
  config.set("attn_logit_softcapping", 50.0);
  EXPECT_EQ(model_from_config_json(config)->describe(),
            model_from_config_json(config_of("gemma3_text"))->describe());
}

TEST(Config, ContextLengthCanBeSet) {
  const Model model = model_from_config_json(config_of("llama_yarn"));
  const Model longer = model->with({.context_length = 1000});
  EXPECT_EQ(longer->context_length(), 1000);
  EXPECT_EQ(longer->max_position_embeddings(), 1000);  // its tables
  EXPECT_EQ(longer->config_json(DType::f32), model->config_json(DType::f32));
  const Model shorter = model->with({.context_length = 10});
  EXPECT_EQ(shorter->context_length(), 10);
  EXPECT_EQ(shorter->max_position_embeddings(), 10);
  const Model learned = model_from_config_json(config_of("gpt2"));
  EXPECT_EQ(learned->with({.context_length = 64})->context_length(), 64);
  EXPECT_THROW(learned->with({.context_length = 65}), Error);
  EXPECT_THROW(model->with({.context_length = int64_t{1} << 40}), Error);
}

// A model keeps the family of its config.json, whatever is changed in it.
TEST(Config, ChangesKeepTheFamily) {
  const Model model = model_from_config_json(config_of("llama"));
  const Model other = model->with({.num_layers = 1, .hidden_dropout = 0.5});
  EXPECT_EQ(other->family(), "llama");
  EXPECT_EQ(other->num_layers(), 1);
  EXPECT_EQ(other->facts().hidden_dropout, 0.5);
  EXPECT_EQ(other->hidden_size(), model->hidden_size());
  EXPECT_THROW(other->config_json(DType::f32), Error);  // the family has no hidden dropout
}

}  // namespace
}  // namespace megatron::models
