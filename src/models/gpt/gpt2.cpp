// GPT-2 (Radford et al. 2019) as transformers stores it: learned positions, biases, LayerNorm, GELU.
#include <fmt/core.h>

#include "base/error.h"
#include "models/gpt/families.h"
#include "models/gpt/hugging_face.h"

namespace megatron::models::gpt2 {
namespace {

GptConfig read(const Json& j) {
  for (const auto key :
       {"scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"}) {
    MG_CHECK(!boolean(j, key, false), "config.json has {} = true, which is not supported", key);
  }
  MG_CHECK(boolean(j, "scale_attn_weights", true),
           "config.json has scale_attn_weights = false, which is not supported");
  GptConfig c;
  c.num_layers = integer(j, "n_layer");
  c.hidden_size = integer(j, "n_embd");
  c.num_attention_heads = integer(j, "n_head");
  c.ffn_hidden_size = integer(j, "n_inner", 0);
  c.max_position_embeddings = integer(j, "n_positions");
  c.vocab_size = integer(j, "vocab_size");
  c.norm_epsilon = number(j, "layer_norm_epsilon", 1e-5);
  c.activation = activation_named(text(j, "activation_function", "gelu_new"));
  c.untied = !boolean(j, "tie_word_embeddings", true);
  c.hidden_dropout = number(j, "resid_pdrop", 0.1);
  c.attention_dropout = number(j, "attn_pdrop", 0.1);
  c.init_method_std = number(j, "initializer_range", 0.02);
  return c;
}

Json write(const GptConfig& c, DType stored) {
  Json j(Json::Object{});
  j.set("activation_function", activation_name(c.activation));
  j.set("architectures", Json::Array{"GPT2LMHeadModel"});
  j.set("attn_pdrop", c.attention_dropout);
  j.set("dtype", stored_name(stored));
  j.set("embd_pdrop", c.hidden_dropout);
  j.set("initializer_range", c.init_method_std);
  j.set("layer_norm_epsilon", c.norm_epsilon);
  j.set("model_type", "gpt2");
  j.set("n_embd", c.hidden_size);
  j.set("n_head", c.num_attention_heads);
  j.set("n_inner", c.ffn_hidden_size);
  j.set("n_layer", c.num_layers);
  j.set("n_positions", c.max_position_embeddings);
  j.set("resid_pdrop", c.hidden_dropout);
  j.set("tie_word_embeddings", !c.untied);
  j.set("vocab_size", c.vocab_size);
  return j;
}

std::string why_not(const GptConfig& c) {
  if (c.position_embedding != PositionEmbedding::learned_absolute)
    return "Hugging Face's gpt2 has learned positions";
  if (c.normalization != nn::Normalization::layer_norm || c.gated)
    return "a model with learned positions is stored as Hugging Face's gpt2, which needs "
           "--normalization LayerNorm and no --swiglu";
  if (!c.qkv_bias || !c.attention_output_bias || !c.mlp_bias)
    return "a model with learned positions is stored as Hugging Face's gpt2, which needs biases: "
           "drop --disable-bias-linear";
  if (c.num_query_groups != c.num_attention_heads ||
      c.kv_channels * c.num_attention_heads != c.hidden_size)
    return "a model with learned positions is stored as Hugging Face's gpt2, which has no query "
           "groups and no head size of its own: drop --group-query-attention and --kv-channels";
  return "";
}

bool names(const GptConfig& c) {
  return c.position_embedding == PositionEmbedding::learned_absolute;
}

std::string name_of(const ParameterName& n) {
  if (n.layer.empty()) {
    if (n.rest == "embedding.weight") return "transformer.wte.weight";
    if (n.rest == "position_embedding.weight") return "transformer.wpe.weight";
    if (n.rest == "output.weight") return "lm_head.weight";
    return replaced_prefix(n.rest, "final_norm", "transformer.ln_f");
  }
  const std::string h = "transformer.h." + n.layer + ".";
  for (const auto& [ours, theirs] : {std::pair{"attention_norm", "ln_1"},
                                     {"attention.qkv", "attn.c_attn"},
                                     {"attention.output", "attn.c_proj"},
                                     {"mlp_norm", "ln_2"},
                                     {"mlp.up", "mlp.c_fc"},
                                     {"mlp.down", "mlp.c_proj"}}) {
    if (n.rest.starts_with(ours)) return h + replaced_prefix(n.rest, ours, theirs);
  }
  throw InternalError(fmt::format("the parameter '{}' has no Hugging Face name", n.rest));
}

// One tensor a parameter; the matrices of layers are Conv1D's, stored [in, out].
std::vector<parallel::CanonicalTensor> parts(const GptConfig&, const std::string& parameter,
                                             const Shape& shape) {
  const ParameterName n = split_name(parameter);
  return whole(name_of(n), shape, !n.layer.empty() && shape.rank() == 2);
}

constexpr GptFamily::Key kKeys[] = {
    {"--num-layers", "n_layer"},
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
    {"--init-method-std", "initializer_range"},
    {"--rotary-base", "rope_theta"},
};

}  // namespace
}  // namespace megatron::models::gpt2

namespace megatron::models {

const GptFamily kGpt2 = {.name = "gpt2",
                         .read = gpt2::read,
                         .write = gpt2::write,
                         .why_not = gpt2::why_not,
                         .names = gpt2::names,
                         .parts = gpt2::parts,
                         .keys = gpt2::kKeys};

}  // namespace megatron::models
