// config.json is read and written back as transformers wrote it.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/error.h"
#include "models/model.h"
#include "models/model_flags.h"

namespace megatron::models {
namespace {

Json golden_config(const std::string& name) {
  return Json::read(std::string(MEGATRON_GOLDEN) + "/hf/" + name + "/config.json");
}

// Keys that affect no shape, or that have only one supported value.
const std::set<std::string_view> kNotWritten = {"add_cross_attention",
                                                "bos_token_id",
                                                "chunk_size",
                                                "classifier_dropout",
                                                "eos_token_id",
                                                "is_decoder",
                                                "mamba_chunk_size",
                                                "mamba_ssm_cache_dtype",
                                                "moe_shared_expert_overlap",
                                                "mtp_layers_block_type",
                                                "num_logits_to_keep",
                                                "pretraining_tp",
                                                "reorder_and_upcast_attn",
                                                "rescale_prenorm_residual",
                                                "residual_in_fp32",
                                                "scale_attn_by_inverse_layer_idx",
                                                "scale_attn_weights",
                                                "_sliding_window_pattern",
                                                "summary_activation",
                                                "summary_first_dropout",
                                                "summary_proj_to_labels",
                                                "summary_type",
                                                "summary_use_proj",
                                                "time_step_rank",
                                                "transformers_version",
                                                "use_cache",
                                                "use_mamba_kernels",
                                                "use_mem_eff_path",
                                                "z_loss_coefficient"};
// Keys of a score head only, keys written for older readers, and keys that a file may omit if they
// have their default.
const std::set<std::string_view> kEither = {"pad_token_id",      "rope_theta",
                                            "head_dim",          "time_step_limit",
                                            "max_window_layers", "use_bidirectional_attention",
                                            "num_hidden_layers", "hybrid_override_pattern"};

TEST(HuggingFaceConfig, ComesBackKeyByKey) {
  for (const char* name : {"gpt2",         "llama",          "llama_tied",
                           "llama_bf16",   "llama_fp16",     "llama3",
                           "llama_linear", "llama_dynamic",  "llama_yarn",
                           "llama_reward", "llama_classify", "mistral",
                           "qwen2",        "qwen3",          "gemma2",
                           "gemma3_text",  "phi3",           "olmo2",
                           "granite",      "nemotron",       "starcoder2",
                           "falcon",       "cohere2",        "gpt_neox",
                           "mixtral",      "qwen2_moe",      "qwen3_moe",
                           "olmoe",        "glm4_moe",       "gpt_oss",
                           "llama4_text",  "deepseek_v2",    "deepseek_v2_lite",
                           "deepseek_v3",  "mamba2",         "bamba",
                           "nemotron_h",   "falcon_h1",      "falcon_h1_norm",
                           "zamba2"}) {
    const Json original = golden_config(name);
    const std::string stored = original["dtype"].as_string();
    const DType type = stored == "bfloat16"  ? DType::bf16
                       : stored == "float16" ? DType::f16
                                             : DType::f32;
    const Json written = model_from_config_json(original)->config_json(type);
    for (const auto& [key, value] : written.as_object()) {
      if (kEither.contains(key)) continue;
      ASSERT_TRUE(original.contains(key)) << name << " has no " << key;
      EXPECT_EQ(value.dump(), original[key].dump()) << name << " " << key;
    }
    for (const auto& [key, value] : original.as_object()) {
      if (kEither.contains(key)) continue;
      EXPECT_NE(written.contains(key), kNotWritten.contains(key)) << name << " " << key;
    }
  }
}

// Configurations written before transformers 5 have the same meaning and are written back in their
// own form.
TEST(HuggingFaceConfig, OlderFormsAreReadAndWritten) {
  for (const char* name :
       {"llama", "llama3", "llama_linear", "llama_yarn", "phi3", "nemotron", "qwen3"}) {
    const Json now = golden_config(name);
    Json older = now;
    Json::Object scaling;
    for (const auto& [key, value] : now["rope_parameters"].as_object()) {
      if (key == "rope_theta" || key == "partial_rotary_factor") {
        older.set(key, value);
      } else {
        scaling.emplace_back(key, value);
      }
    }
    const bool plain = now["rope_parameters"]["rope_type"].as_string() == "default";
    older.set("rope_scaling", plain ? Json() : Json(scaling));
    older.set("torch_dtype", now["dtype"]);
    std::erase_if(older.as_object(), [](const Json::Member& member) {
      return member.first == "rope_parameters" || member.first == "dtype";
    });
    const Model model = model_from_config_json(older);
    EXPECT_EQ(model->describe(), model_from_config_json(now)->describe()) << name;
    const Json written = model->config_json(DType::f32);
    for (const char* key : {"rope_theta", "rope_scaling", "torch_dtype"}) {
      ASSERT_TRUE(written.contains(key)) << name << " " << key;
      EXPECT_EQ(written[key].dump(), older[key].dump()) << name << " " << key;
    }
    EXPECT_FALSE(written.contains("rope_parameters")) << name;
  }
}

// GPT-NeoX uses its own names for rope_theta and partial_rotary_factor.
TEST(HuggingFaceConfig, GptNeoxKeepsItsOlderKeys) {
  const Json now = golden_config("gpt_neox");
  Json older = now;
  std::erase_if(older.as_object(), [](const Json::Member& member) {
    return member.first == "rope_parameters" || member.first == "dtype";
  });
  older.set("rotary_emb_base", now["rope_parameters"]["rope_theta"]);
  older.set("rotary_pct", now["rope_parameters"]["partial_rotary_factor"]);
  older.set("torch_dtype", now["dtype"]);
  const Model model = model_from_config_json(older);
  EXPECT_EQ(model->describe(), model_from_config_json(now)->describe());
  const Json written = model->config_json(DType::f32);
  for (const char* key : {"rotary_emb_base", "rotary_pct"}) {
    ASSERT_TRUE(written.contains(key)) << key;
    EXPECT_EQ(written[key].as_number(), older[key].as_number()) << key;
  }
  for (const char* key : {"rope_theta", "partial_rotary_factor", "rope_parameters"})
    EXPECT_FALSE(written.contains(key)) << key;
}

TEST(HuggingFaceConfig, ABadValueIsBlamedOnItsKey) {
  const auto refusal = [](const char* name, const char* key, const char* value) -> std::string {
    Json config = golden_config(name);
    config.set(key, Json::parse(value));
    try {
      model_from_config_json(config);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  for (const auto& [name, key, value] : {std::tuple{"llama", "num_hidden_layers", "99999999"},
                                         {"llama", "head_dim", "7"},
                                         {"llama", "num_key_value_heads", "3"},
                                         {"llama", "intermediate_size", "999999999999"},
                                         {"llama", "rms_norm_eps", "-1"},
                                         {"llama", "attention_dropout", "2"},
                                         {"llama", "vocab_size", "999999999999"},
                                         {"gpt2", "n_layer", "99999999"},
                                         {"gpt2", "n_head", "7"},
                                         {"gpt2", "n_positions", "999999999999"},
                                         {"gpt2", "resid_pdrop", "1.5"},
                                         {"gpt2", "layer_norm_epsilon", "0"}}) {
    const std::string text = refusal(name, key, value);
    EXPECT_TRUE(text.starts_with("config.json")) << text;
    EXPECT_NE(text.find(key), text.npos) << text;
    EXPECT_EQ(text.find("--"), text.npos) << text;
  }
}

TEST(HuggingFaceConfig, RotaryBaseIsReadFromEitherPlace) {
  const auto base = [](const char* parameters, const char* own) {
    Json config = golden_config("llama");
    config.set("rope_parameters", Json::parse(parameters));
    config.set("rope_theta", Json::parse(own));
    return model_from_config_json(config)->describe()["rotary.default"]["rotary-base"].as_number();
  };
  EXPECT_EQ(base(R"({"rope_type": "default", "rope_theta": 500000.0})", "null"), 500000);
  EXPECT_EQ(base("null", "500000.0"), 500000);
  EXPECT_EQ(base(R"({"rope_type": "default"})", "500000.0"), 500000);
  EXPECT_EQ(base(R"({"rope_type": "default", "rope_theta": 500000.0})", "10000.0"), 500000);
  EXPECT_EQ(base("null", "null"), 10000);
}

TEST(HuggingFaceConfig, RotaryBaseIsWrittenForOlderReadersWhereTheyNeedIt) {
  const Model model = model_from_config_json(golden_config("llama"));
  EXPECT_FALSE(model->config_json(DType::f32).contains("rope_theta"));
  ModelFlags flags{.num_layers = 1, .hidden_size = 16, .num_attention_heads = 2, .vocab_size = 8};
  flags.position_embedding = PositionEmbedding::rope;
  flags.normalization = nn::Normalization::rms_norm;
  flags.swiglu = true;
  flags.add_bias_linear = false;
  flags.rotary_base = 500000;
  const Json written = model_from_flags(flags, 8)->config_json(DType::f32);
  EXPECT_EQ(written["rope_theta"].as_number(), 500000);
  EXPECT_EQ(written["rope_parameters"]["rope_theta"].as_number(), 500000);
  EXPECT_EQ(
      model_from_config_json(written)->describe()["rotary.default"]["rotary-base"].as_number(),
      500000);
}

}  // namespace
}  // namespace megatron::models
