// A config.json that contradicts itself, asks for unsupported features or lacks a necessary key,
// and values that a family's file cannot represent.
#include <gtest/gtest.h>

#include "base/error.h"
#include "unit/models/family_models.h"

namespace megatron::models {
namespace {

// A config.json with a key changed to a JSON value, or without the key if the value is "".
// model.KEY changes the model described by a file of type megatron.
struct Bad {
  const char* name;
  const char* key;
  const char* value;
  std::vector<const char*> parts;  // parts of the error besides the file's name
};

Json changed(const Bad& bad) {
  const std::string name = bad.name;
  std::string key = bad.key;
  Json config = name == "nemotron-nas" || name == "megatron" ? testing::written_config(name)
                                                             : testing::family_config(name);
  const bool inner = key.starts_with("model.");
  Json object = inner ? config["model"] : config;
  if (inner) key.erase(0, 6);
  if (*bad.value != '\0') {
    object.set(key, Json::parse(bad.value));
  } else {
    std::erase_if(object.as_object(), [&](const Json::Member& m) { return m.first == key; });
  }
  if (inner) config.set("model", object);
  return inner ? config : object;
}

const std::vector<Bad> kBad = {
    // The architecture is unknown or missing.
    {"llama", "model_type", R"("opt")", {"model_type", "'opt'", "gpt2", "llama", "cohere2"}},
    {"llama", "model_type", "3", {"model_type", "3"}},
    {"llama", "model_type", "", {"model_type", "gpt2", "cohere2"}},
    {"llama",
     "architectures",
     R"(["LlamaForTokenClassification"])",
     {"architectures", "LlamaForTokenClassification", "LlamaForCausalLM"}},
    {"granite",
     "architectures",
     R"(["GraniteForSequenceClassification"])",
     {"architectures", "GraniteForSequenceClassification", "GraniteForCausalLM"}},
    {"llama", "architectures", R"("LlamaForCausalLM")", {"architectures", "LlamaForCausalLM"}},
    // State spaces.
    {"mamba2", "chunk_size", "-8", {"chunk_size", "-8"}},
    {"bamba", "mamba_chunk_size", R"("x")", {"mamba_chunk_size", "x"}},
    {"mamba2", "conv_kernel", "1", {"conv_kernel", "1 tokens", "[2, "}},
    {"mamba2", "time_step_limit", "[0.5]", {"time_step_limit"}},
    {"mamba2", "n_groups", "3", {"n_groups", "3"}},
    {"nemotron_h", "num_hidden_layers", "99", {"num_hidden_layers", "99"}},
    {"nemotron_h", "hybrid_override_pattern", R"("MX")", {"hybrid_override_pattern", "'X'"}},
    {"falcon_h1", "ssm_multipliers", "[1]", {"ssm_multipliers"}},
    // Sizes.
    {"nemotron-nas", "hidden_size", "", {"hidden_size"}},
    {"llama", "hidden_size", "48.5", {"hidden_size", "48.5"}},
    {"qwen2", "hidden_size", "50", {"hidden_size", "50", "num_attention_heads", "4", "head_dim"}},
    {"gpt2", "n_embd", "50", {"n_embd", "50", "n_head", "4"}},
    {"gpt2", "n_embd", "4611686018427387904", {"n_embd", "4611686018427387904", "1099511627776"}},
    {"gpt_neox", "hidden_size", "50", {"hidden_size", "50", "num_attention_heads", "3"}},
    {"falcon", "hidden_size", "50", {"hidden_size", "50", "num_attention_heads", "4"}},
    {"llama", "num_key_value_heads", "3", {"num_attention_heads", "4", "num_key_value_heads", "3"}},
    {"falcon", "num_kv_heads", "3", {"num_attention_heads", "4", "num_kv_heads", "3"}},
    {"gemma2", "head_dim", "7", {"head_dim", "7", "even"}},
    {"granite", "logits_scaling", "0", {"logits_scaling", "0"}},
    {"granite", "attention_multiplier", "0", {"attention_multiplier", "0", "positive"}},
    {"gemma2", "query_pre_attn_scalar", "-1", {"query_pre_attn_scalar", "-1"}},
    {"nemotron",
     "rope_parameters",
     R"({"partial_rotary_factor": 1.5})",
     {"partial_rotary_factor", "1.5"}},
    {"gpt_neox", "head_dim", "20", {"head_dim", "20", "16"}},
    {"gpt_neox", "num_key_value_heads", "1", {"num_key_value_heads", "1", "3"}},
    {"falcon", "num_ln_in_parallel_attn", "3", {"num_ln_in_parallel_attn", "3", "1", "2"}},
    {"falcon",
     "new_decoder_architecture",
     "false",
     {"num_ln_in_parallel_attn", "2", "new_decoder_architecture"}},
    {"falcon", "parallel_attn", "false", {"parallel_attn", "false", "true"}},
    {"nemotron-nas", "block_configs", "", {"block_configs"}},
    {"nemotron-nas", "block_configs", "3", {"block_configs", "list"}},
    {"nemotron-nas", "block_configs", "[]", {"block_configs", "0", "num_hidden_layers", "3"}},
    {"nemotron-nas",
     "block_configs",
     R"([{"attention": {"n_heads_in_group": 3}, "ffn": {"ffn_mult": 1}}, {}, {}])",
     {"block_configs", "layer 0", "n_heads_in_group", "3", "4"}},
    {"nemotron-nas",
     "block_configs",
     R"([{"attention": {"no_op": true}, "ffn": {}}, {}, {}])",
     {"block_configs", "layer 0", "ffn_mult", "no_op"}},
    {"nemotron-nas",
     "block_configs",
     R"([{"attention": {"no_op": "yes"}, "ffn": {}}, {}, {}])",
     {"block_configs", "layer 0", "no_op", "yes"}},
    {"nemotron-nas", "mlp_bias", "true", {"mlp_bias", "true", "false"}},
    {"megatron", "model", "", {"model"}},
    {"megatron", "model", "3", {"model", "3"}},
    {"megatron", "model.num-layers", "0", {"num-layers", "0", "65536"}},
    {"megatron", "model.vocab-size", R"("many")", {"vocab-size", "many"}},
    {"megatron", "model.vocab-size", "-1", {"vocab-size", "-1"}},
    {"megatron", "model.hidden-size", "", {"hidden-size"}},
    {"megatron", "model.num-experts", "4", {"num-experts"}},
    {"megatron", "model.layers", "[]", {"layers", "0", "3"}},
    {"olmo2", "rms_norm_eps", "0", {"rms_norm_eps", "0"}},
    {"cohere2", "layer_norm_eps", "0", {"layer_norm_eps", "0"}},
    {"gpt_neox", "layer_norm_eps", "0", {"layer_norm_eps", "0"}},
    {"nemotron", "norm_eps", "0", {"norm_eps", "0"}},
    {"starcoder2", "norm_epsilon", "0", {"norm_epsilon", "0"}},
    {"falcon", "layer_norm_epsilon", "0", {"layer_norm_epsilon", "0"}},
    {"falcon", "ffn_hidden_size", "999999999999", {"ffn_hidden_size", "999999999999"}},
    // The number of layers differs from the model's.
    {"gemma2", "layer_types", R"(["full_attention"])", {"num_hidden_layers", "4", "layer_types"}},
    {"gemma3_text",
     "layer_types",
     R"(["full_attention", "full_attention", "full_attention", "chunked_attention"])",
     {"layer_types", "chunked_attention", "full_attention", "sliding_attention"}},
    {"cohere2", "layer_types", "3", {"layer_types", "3"}},
    {"gemma2", "sliding_window", "null", {"layer_types", "sliding_window"}},
    {"mistral", "sliding_window", "-7", {"sliding_window", "-7"}},
    {"mistral", "sliding_window", R"("long")", {"sliding_window", "long"}},
    // Features of the family's other models that this version does not support.
    {"gpt2", "scale_attn_weights", "false", {"scale_attn_weights", "false", "true"}},
    {"falcon", "alibi", "true", {"alibi", "true", "false"}},
    {"gpt_neox", "is_decoder", "true", {"is_decoder", "true", "false"}},
    {"gemma2",
     "use_bidirectional_attention",
     "true",
     {"use_bidirectional_attention", "true", "false"}},
    {"phi3", "embd_pdrop", "0.5", {"embd_pdrop", "0.5", "resid_pdrop", "0"}},
    {"starcoder2",
     "embedding_dropout",
     "0.5",
     {"embedding_dropout", "0.5", "residual_dropout", "0"}},
    {"mistral", "hidden_act", R"("mish")", {"hidden_act", "mish", "silu", "gelu_pytorch_tanh"}},
    {"gemma2", "hidden_activation", R"("mish")", {"hidden_activation", "mish", "silu"}},
    {"gpt2", "activation_function", R"("mish")", {"activation_function", "mish", "gelu_new"}},
    // Types.
    {"llama", "tie_word_embeddings", R"("yes")", {"tie_word_embeddings", "yes"}},
    {"llama", "rms_norm_eps", R"("small")", {"rms_norm_eps", "small"}},
    {"llama", "attention_dropout", "1", {"attention_dropout", "1"}},
    {"gemma3_text", "final_logit_softcapping", "-1", {"final_logit_softcapping", "-1"}},
    {"gemma2", "attn_logit_softcapping", "-1", {"attn_logit_softcapping", "-1"}},
    // A scaling of rotary positions whose number is missing or wrong.
    {"llama",
     "rope_parameters",
     R"({"rope_type": "mrope"})",
     {"rope_type", "mrope", "default", "yarn", "longrope"}},
    {"llama", "rope_parameters", R"({"rope_type": 3})", {"rope_type", "3"}},
    {"llama", "rope_parameters", "3", {"rope_parameters", "3"}},
    {"llama",
     "rope_parameters",
     R"({"rope_type": "linear"})",
     {"rope_parameters", "linear", "factor"}},
    {"llama", "rope_parameters", R"({"rope_type": "linear", "factor": 0})", {"factor", "0"}},
    {"llama",
     "rope_parameters",
     R"({"rope_type": "dynamic"})",
     {"rope_parameters", "dynamic", "factor"}},
    {"llama", "rope_parameters", R"({"rope_type": "dynamic", "factor": 0.5})", {"factor", "0.5"}},
    {"llama", "rope_parameters", R"({"rope_type": "yarn"})", {"rope_parameters", "yarn", "factor"}},
    {"llama",
     "rope_parameters",
     R"({"rope_type": "yarn", "factor": 4, "beta_fast": -1})",
     {"beta_fast", "-1"}},
    {"llama",
     "rope_parameters",
     R"({"rope_type": "llama3", "low_freq_factor": 1, "high_freq_factor": 4, )"
     R"("original_max_position_embeddings": 16})",
     {"llama3", "factor"}},
    {"llama",
     "rope_parameters",
     R"({"rope_type": "llama3", "factor": 8, "high_freq_factor": 4, )"
     R"("original_max_position_embeddings": 16})",
     {"llama3", "low_freq_factor"}},
    {"llama",
     "rope_parameters",
     R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, )"
     R"("original_max_position_embeddings": 16})",
     {"llama3", "high_freq_factor"}},
    {"llama",
     "rope_scaling",
     R"({"type": "yarn", "factor": -4})",
     {"rope_scaling.factor = -4", "positive"}},
    {"llama",
     "rope_scaling",
     R"({"type": "linear", "factor": "4"})",
     {"rope_scaling.factor", "\"4\"", "number"}},
    {"llama", "rope_scaling", R"({"type": "linear", "factor": 1e300})", {"context", "factor"}},
    {"llama", "rope_scaling", "[]", {"rope_scaling = []", "object"}},
    {"llama",
     "rope_parameters",
     R"({"rope_type": "linear", "factor": 2, "partial_rotary_factor": 0.5})",
     {"partial_rotary_factor = 0.5", "rope_parameters.rope_type = linear"}},
    {"qwen2",
     "rope_parameters",
     R"({"full_attention": {"rope_type": "default"}})",
     {"rope_parameters", "full_attention"}},
    {"phi3",
     "rope_scaling",
     R"({"type": "linear", "factor": 2})",
     {"rope_type", "longrope", "linear"}},
    {"gemma2", "sliding_window", "null", {"sliding_window", "layer 0"}},
    {"qwen3", "num_attention_heads", "1048576", {"num_attention_heads", "1048576", "16384"}},
    {"olmoe", "clip_qkv", "-1", {"clip_qkv is -1", "0 or more"}},
    {"llama",
     "rope_parameters",
     R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1, )"
     R"("original_max_position_embeddings": 16})",
     {"high_freq_factor", "1", "low_freq_factor", "4"}},
    {"phi3",
     "rope_parameters",
     R"({"rope_type": "longrope", "long_factor": [1, 1, 1, 1]})",
     {"longrope", "short_factor"}},
    {"phi3",
     "rope_parameters",
     R"({"rope_type": "longrope", "short_factor": [1, 1, 1, 1]})",
     {"longrope", "long_factor"}},
    {"phi3",
     "rope_parameters",
     R"({"rope_type": "longrope", "short_factor": [1, 1], "long_factor": [1, 1], )"
     R"("partial_rotary_factor": 0.67})",
     {"short_factor", "2", "4"}},
    {"phi3",
     "rope_parameters",
     R"({"rope_type": "longrope", "short_factor": 1, "long_factor": [1]})",
     {"short_factor", "1"}},
    {"gemma3_text",
     "rope_parameters",
     R"({"full_attention": {"rope_type": "linear"}, "sliding_attention": {}})",
     {"linear", "factor"}},
    {"gemma3_text",
     "rope_parameters",
     R"({"full_attention": {}, "sliding_attention": {"rope_type": "yarn"}})",
     {"rope_parameters.sliding_attention.rope_type = yarn", "factor"}},
    // Experts.
    {"mixtral", "num_experts_per_tok", "6", {"num_experts_per_tok", "6", "[1, 5]"}},
    {"mixtral", "num_local_experts", "0", {"num_local_experts", "0", "positive"}},
    {"mixtral", "num_local_experts", "5000", {"num_local_experts", "5000", "4096"}},
    {"mixtral", "router_jitter_noise", "0.1", {"router_jitter_noise", "0.1", "0"}},
    {"mixtral", "router_aux_loss_coef", R"("small")", {"router_aux_loss_coef", "small"}},
    {"olmoe", "num_experts_per_tok", "7", {"num_experts_per_tok", "7", "[1, 6]"}},
    {"olmoe", "num_experts", "5000", {"num_experts", "5000", "4096"}},
    {"olmoe", "norm_topk_prob", "3", {"norm_topk_prob", "3"}},
    {"olmoe", "intermediate_size", "999999999", {"intermediate_size", "999999999"}},
    {"glm4_moe", "n_group", "3", {"n_routed_experts", "8", "n_group", "3"}},
    {"glm4_moe", "topk_group", "3", {"topk_group", "3", "2 groups of 4 experts"}},
    {"glm4_moe", "num_experts_per_tok", "5", {"topk_group", "1", "num_experts_per_tok", "5"}},
    {"glm4_moe", "n_routed_experts", "2", {"num_experts_per_tok", "3", "[1, 2]"}},
    {"glm4_moe", "routed_scaling_factor", "0", {"routed_scaling_factor", "0"}},
    {"glm4_moe", "first_k_dense_replace", "-1", {"first_k_dense_replace", "-1"}},
    {"glm4_moe", "first_k_dense_replace", R"("one")", {"first_k_dense_replace", "one"}},
    {"glm4_moe", "first_k_dense_replace", "3", {"any of its 3 layers", "model_type"}},
    {"glm4_moe", "moe_intermediate_size", "999999999", {"moe_intermediate_size", "999999999"}},
    {"qwen2_moe", "mlp_only_layers", "3", {"mlp_only_layers", "3", "list"}},
    {"qwen2_moe", "mlp_only_layers", R"(["a"])", {"mlp_only_layers", "a", "list"}},
    {"qwen2_moe", "mlp_only_layers", "[0, 1, 2]", {"any of its 3 layers", "model_type"}},
    {"qwen2_moe", "decoder_sparse_step", "0", {"decoder_sparse_step", "0"}},
    {"qwen2_moe",
     "shared_expert_intermediate_size",
     "999999999",
     {"shared_expert_intermediate_size", "999999999"}},
    {"qwen3_moe", "decoder_sparse_step", "7", {"any of its 4 layers", "model_type"}},
    {"gpt_oss", "hidden_act", R"("gelu")", {"hidden_act", "gelu", "silu"}},
    {"gpt_oss", "swiglu_alpha", "2", {"swiglu_alpha", "2", "1.702"}},
    {"gpt_oss", "swiglu_limit", "-1", {"swiglu_limit", "-1"}},
    {"gpt_oss", "num_experts_per_tok", "8", {"num_experts_per_tok", "8", "[1, 5]"}},
    {"llama4_text", "num_experts_per_tok", "2", {"num_experts_per_tok", "2", "1"}},
    {"llama4_text", "moe_layers", "3", {"moe_layers", "3", "list"}},
    {"llama4_text", "moe_layers", "[9]", {"any of its 4 layers", "model_type"}},
    {"llama4_text", "no_rope_layers", "[1]", {"num_hidden_layers", "4", "1", "no_rope_layers"}},
    {"gemma3_text", "rope_parameters", R"({"full_attention": 3})", {"rope_parameters", "3"}},
    {"cohere2", "rope_parameters", R"({"rope_theta": -1})", {"rope_theta", "-1"}},
};

TEST(BadConfig, IsRefusedByFileKeyAndValue) {
  for (const Bad& bad : kBad) {
    SCOPED_TRACE(std::string(bad.name) + ": " + bad.key + " = " + bad.value);
    try {
      model_from_config_json(changed(bad), "models/x/config.json");
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_TRUE(text.starts_with("models/x/config.json")) << text;
      for (const char* part : bad.parts)
        EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
      EXPECT_EQ(text.find("--"), std::string::npos) << text;
    }
  }
}

// A feature that a family's file cannot represent, which makes a save fail.
struct Obstacle {
  const char* family;
  void (*change)(DecoderValue&);
  std::vector<const char*> parts;
};

void with_experts(DecoderValue& value) {
  for (LayerValue& layer : value.layers) layer.feed_forward = testing::plain_experts();
}

TEST(BadSave, NamesWhatTheFamilyCannotHold) {
  const auto as_it_is = [](DecoderValue&) {};
  const std::vector<Obstacle> obstacles = {
      {"llama",
       [](DecoderValue& v) { v.layers[1].attention()->window = 4; },
       {"in layer 1", "window-size 4"}},
      {"llama", [](DecoderValue& v) { v.hidden_dropout = 0.1; }, {"--hidden-dropout 0.1", "use"}},
      {"gpt2", as_it_is, {"rotary.default", "10000"}},
      {"qwen2", as_it_is, {"layer 0", "qkv-bias false", "only represent true"}},
      {"qwen3", as_it_is, {"layer 0", "qk-norm at its default", "only represent \"head\""}},
      {"mistral",
       [](DecoderValue& v) { v.layers[1].attention()->window = 4; },
       {"layer 0", "window-size at its default", "only represent 4"}},
      {"gemma2",
       as_it_is,
       {"embedding-multiplier at its default", "only represent 4.898979485566356"}},
      {"gemma3_text", as_it_is, {"rotary.default", "only represent its default"}},
      {"phi3",
       [](DecoderValue& v) { v.logits_soft_cap = 2; },
       {"final-logit-softcapping 2.0", "only represent its default"}},
      {"olmo2", as_it_is, {"layer 0", "qk-norm", "only represent \"full-width\""}},
      {"granite",
       [](DecoderValue& v) {
         for (LayerValue& layer : v.layers) layer.attention()->scale = 0.5;
         v.layers[2].mlp()->ffn = 41;
       },
       {"in layer 2", "ffn-hidden-size 41", "only represent 40"}},
      {"nemotron", as_it_is, {"final-norm", "only represent", "LayerNorm"}},
      {"nemotron-nas", as_it_is, {"layer 0", "ffn-hidden-size 40", "only represent 256"}},
      {"starcoder2", as_it_is, {"final-norm", "only represent", "LayerNorm"}},
      {"falcon", as_it_is, {"parallel_attn = false", "only true"}},
      {"gpt_neox", as_it_is, {"final-norm", "only represent", "LayerNorm"}},
      {"cohere2", as_it_is, {"rotary.default", "\"rotary-interleaved\": true"}},
      {"mixtral", as_it_is, {"without experts"}},
      {"qwen2_moe", as_it_is, {"without experts"}},
      {"qwen3_moe", as_it_is, {"without experts"}},
      {"olmoe", as_it_is, {"without experts"}},
      {"glm4_moe", as_it_is, {"without experts"}},
      {"gpt_oss", as_it_is, {"without experts"}},
      {"llama4_text", as_it_is, {"without experts"}},
      {"llama", with_experts, {"without an MLP"}},
      {"mixtral",
       [](DecoderValue& v) {
         with_experts(v);
         v.layers[1].moe()->shared_ffn = 8;
       },
       {"in layer 1", "moe-shared-expert-intermediate-size 8", "only represent its default"}},
      {"mixtral",
       [](DecoderValue& v) {
         with_experts(v);
         for (LayerValue& layer : v.layers) layer.moe()->latent = 8;
       },
       {"moe-latent-size 8", "only represent its default"}},
      {"mixtral",
       [](DecoderValue& v) {
         with_experts(v);
         v.layers[2].feed_forward = v.layers[0].moe()->expert;
       },
       {"in layer 2"}},
      {"qwen3_moe",
       [](DecoderValue& v) {
         with_experts(v);
         for (LayerValue& layer : v.layers) layer.attention()->qk_norm = nn::QkNorm::head;
         v.layers[1].moe()->choices = 3;
       },
       {"in layer 1", "moe-router-topk 3", "only represent 2"}},
      {"olmoe", with_experts, {"layer 0", "qk-norm", "full-width"}},
      {"glm4_moe", with_experts, {"glm4_moe"}},
      {"gpt_oss", with_experts, {"layer 0"}},
      {"llama4_text", with_experts, {"num_experts_per_tok", "2", "1"}}};
  for (const auto& [family, change, parts] : obstacles) {
    DecoderValue value = testing::plain_decoder();
    change(value);
    try {
      decoder_model(value, family_named(family))->config_json(DType::f32);
      ADD_FAILURE() << family;
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(std::string("config.json of a ") + family), std::string::npos) << text;
      for (const char* part : parts)
        EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
    }
  }
}

}  // namespace
}  // namespace megatron::models
