// Llama (Touvron et al. 2023) as transformers stores it: rotary positions, RMSNorm, gated SiLU, key heads
// that several query heads share.
#include <fmt/core.h>

#include "base/error.h"
#include "models/gpt/families.h"
#include "models/gpt/hugging_face.h"

namespace megatron::models::llama {
namespace {

using parallel::CanonicalTensor;

constexpr double kDefaultRopeTheta = 10000;

double rope_theta(const Json& j) {
  const Json* rope = present(j, "rope_parameters");
  if (rope == nullptr) rope = present(j, "rope_scaling");
  if (rope != nullptr) {
    const std::string type = text(*rope, "rope_type", text(*rope, "type", "default"));
    MG_CHECK(type == "default",
             "config.json asks for rope_type '{}'; this version supports 'default' only", type);
    MG_CHECK(number(*rope, "partial_rotary_factor", 1) == 1,
             "config.json asks for a partial_rotary_factor of {}; only 1 is supported",
             number(*rope, "partial_rotary_factor", 1));
    if (present(*rope, "rope_theta") != nullptr)
      return number(*rope, "rope_theta", kDefaultRopeTheta);
  }
  return number(j, "rope_theta", kDefaultRopeTheta);
}

GptConfig read(const Json& j) {
  MG_CHECK(integer(j, "pretraining_tp", 1) == 1,
           "config.json has pretraining_tp {}; only 1 is supported",
           integer(j, "pretraining_tp", 1));
  GptConfig c;
  c.num_layers = integer(j, "num_hidden_layers");
  c.hidden_size = integer(j, "hidden_size");
  c.num_attention_heads = integer(j, "num_attention_heads");
  c.num_query_groups = integer(j, "num_key_value_heads", c.num_attention_heads);
  c.kv_channels = integer(j, "head_dim", 0);
  c.ffn_hidden_size = integer(j, "intermediate_size");
  c.max_position_embeddings = integer(j, "max_position_embeddings");
  c.vocab_size = integer(j, "vocab_size");
  c.position_embedding = PositionEmbedding::rope;
  c.rotary_base = rope_theta(j);
  c.normalization = nn::Normalization::rms_norm;
  c.norm_epsilon = number(j, "rms_norm_eps", 1e-6);
  c.activation = activation_named(text(j, "hidden_act", "silu"));
  c.gated = true;
  c.qkv_bias = c.attention_output_bias = boolean(j, "attention_bias", false);
  c.mlp_bias = boolean(j, "mlp_bias", false);
  c.untied = !boolean(j, "tie_word_embeddings", false);
  c.hidden_dropout = 0;
  c.attention_dropout = number(j, "attention_dropout", 0);
  c.init_method_std = number(j, "initializer_range", 0.02);
  return c;
}

Json write(const GptConfig& c, DType stored) {
  Json rope(Json::Object{});
  rope.set("rope_theta", c.rotary_base);
  rope.set("rope_type", "default");
  Json j(Json::Object{});
  j.set("architectures", Json::Array{"LlamaForCausalLM"});
  j.set("attention_bias", c.qkv_bias);
  j.set("attention_dropout", c.attention_dropout);
  j.set("dtype", stored_name(stored));
  j.set("head_dim", c.kv_channels);
  j.set("hidden_act", activation_name(c.activation));
  j.set("hidden_size", c.hidden_size);
  j.set("initializer_range", c.init_method_std);
  j.set("intermediate_size", c.ffn_hidden_size);
  j.set("max_position_embeddings", c.max_position_embeddings);
  j.set("mlp_bias", c.mlp_bias);
  j.set("model_type", "llama");
  j.set("num_attention_heads", c.num_attention_heads);
  j.set("num_hidden_layers", c.num_layers);
  j.set("num_key_value_heads", c.num_query_groups);
  j.set("rms_norm_eps", c.norm_epsilon);
  j.set("rope_parameters", rope);
  if (c.rotary_base != kDefaultRopeTheta) j.set("rope_theta", c.rotary_base);
  j.set("tie_word_embeddings", !c.untied);
  j.set("vocab_size", c.vocab_size);
  return j;
}

std::string why_not(const GptConfig& c) {
  if (c.position_embedding != PositionEmbedding::rope)
    return "Hugging Face's llama has rotary positions";
  if (c.normalization != nn::Normalization::rms_norm || !c.gated)
    return "a model with rotary positions is stored as Hugging Face's llama, which needs "
           "--normalization RMSNorm and --swiglu";
  if (c.qkv_bias != c.attention_output_bias)
    return "Hugging Face's llama has biases on queries, keys, values and the output of attention, "
           "or on none: drop --add-qkv-bias";
  if (c.hidden_dropout != 0)
    return fmt::format(
        "Hugging Face's llama has no hidden dropout (--hidden-dropout is {}): use "
        "--hidden-dropout 0",
        c.hidden_dropout);
  return "";
}

bool names(const GptConfig& c) { return c.position_embedding == PositionEmbedding::rope; }

std::vector<CanonicalTensor> parts(const GptConfig& c, const std::string& parameter,
                                   const Shape& shape) {
  const ParameterName n = split_name(parameter);
  if (n.layer.empty()) {
    if (n.rest == "embedding.weight") return whole("model.embed_tokens.weight", shape, false);
    if (n.rest == "output.weight") return whole("lm_head.weight", shape, false);
    return whole(replaced_prefix(n.rest, "final_norm", "model.norm"), shape, false);
  }
  const std::string h = "model.layers." + n.layer + ".";
  const std::string kind = n.rest.substr(n.rest.rfind('.'));  // ".weight", ".bias"
  if (n.rest.starts_with("attention.qkv")) {
    const int64_t q = c.num_attention_heads * c.kv_channels, k = c.num_query_groups * c.kv_channels;
    return stacked(shape, {{h + "self_attn.q_proj" + kind, q},
                           {h + "self_attn.k_proj" + kind, k},
                           {h + "self_attn.v_proj" + kind, k}});
  }
  if (n.rest.starts_with("mlp.up") && !c.gated) {
    return whole(h + "mlp.up_proj" + kind, shape, false);
  }
  if (n.rest.starts_with("mlp.up")) {
    return stacked(shape, {{h + "mlp.gate_proj" + kind, c.ffn_hidden_size},
                           {h + "mlp.up_proj" + kind, c.ffn_hidden_size}});
  }
  for (const auto& [ours, theirs] : {std::pair{"attention_norm", "input_layernorm"},
                                     {"attention.output", "self_attn.o_proj"},
                                     {"mlp_norm", "post_attention_layernorm"},
                                     {"mlp.down", "mlp.down_proj"}}) {
    if (n.rest.starts_with(ours))
      return whole(h + replaced_prefix(n.rest, ours, theirs), shape, false);
  }
  throw InternalError(fmt::format("the parameter '{}' has no Hugging Face name", n.rest));
}

constexpr GptFamily::Key kKeys[] = {
    {"--num-layers", "num_hidden_layers"},
    {"--ffn-hidden-size", "intermediate_size"},
    {"--hidden-size", "hidden_size"},
    {"--num-attention-heads", "num_attention_heads"},
    {"--num-query-groups", "num_key_value_heads"},
    {"--kv-channels", "head_dim"},
    {"--max-position-embeddings", "max_position_embeddings"},
    {"--vocab-size", "vocab_size"},
    {"--hidden-dropout", "hidden_dropout"},
    {"--attention-dropout", "attention_dropout"},
    {"--norm-epsilon", "rms_norm_eps"},
    {"--init-method-std", "initializer_range"},
    {"--rotary-base", "rope_theta"},
};

}  // namespace
}  // namespace megatron::models::llama

namespace megatron::models {

const GptFamily kLlama = {.name = "llama",
                          .read = llama::read,
                          .write = llama::write,
                          .why_not = llama::why_not,
                          .names = llama::names,
                          .parts = llama::parts,
                          .keys = llama::kKeys};

}  // namespace megatron::models
