// GPT-2 (Radford et al. 2019): learned positions, LayerNorm, biases, GELU.
#include "base/error.h"
#include "models/families/all.h"
#include "models/families/config_json.h"

namespace megatron::models {
namespace gpt2 {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
  "activation_function": "gelu_new", "resid_pdrop": 0.1, "attn_pdrop": 0.1,
  "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "tie_word_embeddings": true})";

constexpr DecoderFamily::Alias kAliases[] = {{"hidden_size", "n_embd"},
                                             {"max_position_embeddings", "n_positions"},
                                             {"num_attention_heads", "n_head"},
                                             {"num_hidden_layers", "n_layer"}};

DecoderValue read(const Json& j) {
  for (const auto key :
       {"scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"})
    refuse_unless(j, key, false);
  refuse_unless(j, "scale_attn_weights", true);
  DecoderValue value;
  value.hidden_size = integer(j, "n_embd");
  value.vocab_size = integer(j, "vocab_size");
  value.max_position_embeddings = integer(j, "n_positions");
  constexpr int64_t kMaxPositions = 1 << 20;  // bounds the allocated position table
  MG_CHECK(value.max_position_embeddings <= kMaxPositions,
           "config.json has n_positions = {}; the maximum is {}", value.max_position_embeddings,
           kMaxPositions);
  value.learned_positions = true;
  value.untied = !boolean(j, "tie_word_embeddings");
  value.hidden_dropout = number(j, "resid_pdrop");
  value.attention_dropout = number(j, "attn_pdrop");
  value.init_method_std = number(j, "initializer_range");
  const int64_t heads = integer(j, "n_head");
  MG_CHECK(value.hidden_size % heads == 0,
           "config.json has n_embd = {}, which is not a multiple of n_head = {}", value.hidden_size,
           heads);
  const nn::NormConfig norm{.epsilon = positive(j, "layer_norm_epsilon")};
  const LayerValue layer{
      .mixer = nn::AttentionConfig{.heads = heads,
                                   .kv_heads = heads,
                                   .head_size = value.hidden_size / heads,
                                   .qkv_bias = true,
                                   .output_bias = true},
      .feed_forward = nn::MlpConfig{.ffn = integer(j, "n_inner", 4 * value.hidden_size),
                                    .activation = activation(j, "activation_function"),
                                    .bias = true},
      .norm = norm};
  value.layers.assign(static_cast<size_t>(layer_count(j, "n_layer")), layer);
  value.final_norm = norm;
  return value;
}

Json write(const DecoderValue& value) {
  const nn::AttentionConfig* a = value.first_attention();
  const nn::MlpConfig* mlp = value.first_mlp();
  MG_CHECK(a != nullptr && mlp != nullptr, "a model without attention or without an MLP");
  const bool tanh = mlp->activation == kernels::Activation::gelu_tanh;
  Json j(Json::Object{});
  j.set("activation_function", tanh ? "gelu_new" : activation_name(mlp->activation));
  j.set("architectures", Json::Array{"GPT2LMHeadModel"});
  j.set("attn_pdrop", value.attention_dropout);
  j.set("embd_pdrop", value.hidden_dropout);
  j.set("initializer_range", value.init_method_std);
  j.set("layer_norm_epsilon", value.layers[0].norm.epsilon);
  j.set("n_embd", value.hidden_size);
  j.set("n_head", a->heads);
  j.set("n_inner", mlp->ffn);
  j.set("n_layer", value.num_layers());
  j.set("n_positions", value.max_position_embeddings);
  j.set("resid_pdrop", value.hidden_dropout);
  j.set("tie_word_embeddings", !value.untied);
  j.set("vocab_size", value.vocab_size);
  return j;
}

FamilyTensors tensors(const DecoderValue&) {
  return {.layer_prefix = "transformer.h.*.",
          .outside = {{"embedding", "transformer.wte"},
                      {"position_embedding", "transformer.wpe"},
                      {"final_norm", "transformer.ln_f"},
                      {"output", "lm_head"}},
          .layer = {{"attention_norm", "ln_1"},
                    {"attention.qkv", "attn.c_attn", Take::transposed},
                    {"attention.output", "attn.c_proj", Take::transposed},
                    {"mlp_norm", "ln_2"},
                    {"mlp.up", "mlp.c_fc", Take::transposed},
                    {"mlp.down", "mlp.c_proj", Take::transposed}}};
}

constexpr DecoderFamily::Key kKeys[] = {{"--num-layers", "n_layer"},
                                        {"--ffn-hidden-size", "n_inner"},
                                        {"--hidden-size", "n_embd"},
                                        {"--num-attention-heads", "n_head"},
                                        {"--num-query-groups", "n_head"},
                                        {"--kv-channels", "n_embd / n_head"},
                                        {"--max-position-embeddings", "n_positions"},
                                        {"--vocab-size", "vocab_size"},
                                        {"--hidden-dropout", "resid_pdrop"},
                                        {"--attention-dropout", "attn_pdrop"},
                                        {"--norm-epsilon", "layer_norm_epsilon"},
                                        {"--init-method-std", "initializer_range"}};
constexpr std::string_view kBuffers[] = {"h.*.attn.bias"};

}  // namespace gpt2

const DecoderFamily kGpt2 = {.name = "gpt2",
                             .models = "GPT-2",
                             .read = gpt2::read,
                             .write = gpt2::write,
                             .tensors = gpt2::tensors,
                             .defaults = gpt2::kDefaults,
                             .aliases = gpt2::kAliases,
                             .keys = gpt2::kKeys,
                             .buffers = gpt2::kBuffers,
                             .score_class = "GPT2ForSequenceClassification",
                             .base_prefix = "transformer."};

}  // namespace megatron::models
