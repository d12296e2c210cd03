#include "models/model_flags.h"

#include <algorithm>
#include <array>

namespace megatron::models {

void ModelFlags::fields(Fields& f) {
  f.begin_group("model");
  f.add("num-layers", &num_layers, "number of decoder layers");
  f.add("hidden-size", &hidden_size, "width of the residual stream");
  f.add("ffn-hidden-size", &ffn_hidden_size,
        "width of the feed-forward block; default 4 x hidden, with --swiglu 8/3 x hidden rounded "
        "down to a multiple of 64");
  f.add("num-attention-heads", &num_attention_heads, "number of query heads");
  f.add("kv-channels", &kv_channels, "size of a head; default hidden / heads");
  f.add_switch("group-query-attention", &group_query_attention, true,
               "several query heads share a key head");
  f.add("num-query-groups", &num_query_groups, "number of key heads with --group-query-attention");
  f.add("max-position-embeddings", &max_position_embeddings,
        "longest sequence the model is made for; default --seq-length");
  f.add("vocab-size", &vocab_size, "number of tokens; default the tokenizer's");
  f.add_enum<PositionEmbedding>("position-embedding-type", &position_embedding,
                                {{"learned_absolute", PositionEmbedding::learned_absolute},
                                 {"rope", PositionEmbedding::rope},
                                 {"yarn", PositionEmbedding::yarn},
                                 {"none", PositionEmbedding::none}},
                                "how positions enter: a learned table, rotation of queries and "
                                "keys (yarn: for a longer context than the "
                                "model was trained on), or not at all");
  f.add("rotary-base", &rotary_base, "base of the rotary angles");
  f.add("rotary-percent", &rotary_percent, "part of each head that is rotated, in (0, 1]");
  f.add_switch(
      "rotary-interleaved", &rotary_interleaved, true,
      "rotates neighbouring dims of a head together; else those half the rotated dims apart");
  f.add("rotary-seq-len-interpolation-factor", &rotary_interpolation,
        "positions are divided by it (linear scaling)");
  f.add_switch("use-rope-scaling", &use_rope_scaling, true,
               "rotary angles of Llama 3.1, for contexts beyond 8,192 tokens");
  f.add("rope-scaling-factor", &rope_scaling_factor,
        "how many times longer the context is with --use-rope-scaling");
  f.add("rotary-scaling-factor", &rotary_scaling_factor,
        "how many times longer the context is with --position-embedding-type yarn");
  f.add("yarn-original-max-position-embeddings", &yarn_original_positions,
        "context before it was extended; default 4096");
  f.add("yarn-beta-fast", &yarn_beta_fast,
        "rotations over the original context above which a frequency stays; default 32");
  f.add("yarn-beta-slow", &yarn_beta_slow,
        "rotations over the original context below which a frequency is divided by the factor; "
        "default 1");
  f.add_switch("no-yarn-correction-range-round-to-int", &yarn_round_to_int, false,
               "the bounds of the dims in between are not rounded");
  f.add("mscale", &mscale, "scale of cos and sin: 0.1 x mscale x ln(factor) + 1");
  f.add("mscale-all-dim", &mscale_all_dim, "the same, which they are divided by");
  f.add("no-rope-freq", &no_rope_freq,
        "layers without rotation: every N-th, or a list of 0 and 1 (without) a layer, "
        "\"[0,0,0,1]*8\"");
  f.add_enum<nn::Normalization>(
      "normalization", &normalization,
      {{"LayerNorm", nn::Normalization::layer_norm}, {"RMSNorm", nn::Normalization::rms_norm}},
      "normalisation before each block");
  f.add_switch("apply-layernorm-1p", &layernorm_1p, true,
               "norms multiply by 1 + weight, so that weight decay draws them to 1");
  f.add_switch("qk-layernorm", &qk_layernorm, true,
               "each head of queries and keys is normalised, by --normalization");
  f.add_switch("qk-l2-norm", &qk_l2_norm, true,
               "each head of queries and keys is divided by its root mean square");
  f.add("norm-epsilon", &norm_epsilon, "added to the variance under the root");
  f.add_switch("swiglu", &swiglu, true,
               "gated feed-forward block with SiLU; else GELU (tanh form)");
  f.add_switch("squared-relu", &squared_relu, true, "feed-forward block with max(x, 0)^2");
  f.add_switch("quick-geglu", &quick_geglu, true,
               "gated feed-forward block with x sigmoid(1.702 x) (GPT-OSS)");
  f.add("glu-linear-offset", &glu_linear_offset, "added to what a gate multiplies");
  f.add("activation-func-clamp-value", &activation_clamp,
        "largest gate, and largest size of what it multiplies, in a gated feed-forward block");
  f.add_switch("openai-gelu", &openai_gelu, true,
               "GELU in its tanh form, also with --no-bias-gelu-fusion");
  f.add("window-size", &window_size,
        "earlier and later tokens that attention sees besides a token itself, \"127,0\"; -1: all");
  f.add("window-attn-skip-freq", &window_attn_skip_freq,
        "layers without --window-size: every N-th, or a list of 0 (without) and 1 a layer");
  f.add_enum<SoftmaxType>(
      "softmax-type", &softmax_type,
      {{"vanilla", SoftmaxType::vanilla},
       {"off-by-one", SoftmaxType::off_by_one},
       {"learnable", SoftmaxType::learnable}},
      "one more logit in attention's softmax, without a value: none, 0, or one a head that "
      "is learned");
  f.add("heterogeneous-layers-config-path", &heterogeneous_layers,
        "JSON file with a layer's attention and feed-forward block each (block_configs)");
  f.add("heterogeneous-layers-config-encoded-json", &heterogeneous_layers_json,
        "the same as text in place of a file");
  f.add_switch("attention-output-gate", &attention_output_gate, true,
               "attention's result times the sigmoid of as many values made of its input");
  f.add_switch(
      "use-mup", &use_mup, true,
      "maximal update parametrisation: settings found on a narrow model hold for a wide one");
  f.add("mup-base-hidden-size", &mup_base_hidden_size,
        "--hidden-size of the narrow model; default this one's");
  f.add("mup-base-head-dim", &mup_base_head_dim,
        "size of a head of the narrow model; attention scores are multiplied by its square root");
  f.add("mup-attn-scale-power", &mup_attn_scale_power,
        "power of the head size that attention scores are divided by with --use-mup");
  f.add("mup-embedding-mult", &mup_embedding_mult,
        "what embeddings are multiplied by with --use-mup");
  f.add("mup-output-mult", &mup_output_mult,
        "what logits are multiplied by with --use-mup; default base hidden size / hidden size");
  f.add("model-family", &model_family,
        "model_type of the Hugging Face directories that are saved; default the first that can "
        "hold the "
        "model");
  f.add_switch("disable-bias-linear", &add_bias_linear, false, "no biases in linear layers");
  f.add_switch("add-qkv-bias", &add_qkv_bias, true,
               "biases on queries, keys and values even with --disable-bias-linear");
  f.add_switch("untie-embeddings-and-output-weights", &untie, true, "output weights of their own");
  f.add("hidden-dropout", &hidden_dropout,
        "dropout after the embedding, attention and feed-forward blocks; default 0.1");
  f.add("attention-dropout", &attention_dropout, "dropout of attention probabilities; default 0.1");
  f.add("init-method-std", &init_method_std,
        "standard deviation of initial weights; block outputs have it divided by sqrt(2 x layers)");
  f.add("embedding-init-method-std", &embedding_init_method_std,
        "standard deviation of the embeddings' initial weights; default that of the others");
  f.add_switch(
      "init-method-xavier-uniform", &init_method_xavier_uniform, true,
      "initial weights between -a and a, a = sqrt(6 / (inputs + outputs)), of all matrices");
  f.add_switch(
      "no-bias-gelu-fusion", &bias_gelu_fusion, false,
      "GELU in its exact form, x Phi(x), which Megatron-LM computes where it does not fuse "
      "it with the bias; else the tanh form");
  f.common({"num-layers", "hidden-size", "num-attention-heads", "vocab-size"});
  const auto type_text = [this] {
    switch (position_embedding) {
      case PositionEmbedding::learned_absolute:
        return "--position-embedding-type is learned_absolute";
      case PositionEmbedding::rope: return "--position-embedding-type is rope";
      case PositionEmbedding::yarn: return "--position-embedding-type is yarn";
      default: return "--position-embedding-type is none";
    }
  };
  f.of({"rotary-base", "rotary-interleaved", "no-rope-freq"}, [this, type_text] {
    const bool rotates = position_embedding == PositionEmbedding::rope ||
                         position_embedding == PositionEmbedding::yarn;
    return rotates ? "" : type_text();
  });
  f.of({"rotary-percent", "rotary-seq-len-interpolation-factor", "use-rope-scaling"},
       [this, type_text] {
         return position_embedding == PositionEmbedding::rope ? "" : type_text();
       });
  f.of({"rope-scaling-factor"},
       [this] { return use_rope_scaling ? "" : "it is of --use-rope-scaling"; });
  f.of({"rotary-scaling-factor", "yarn-original-max-position-embeddings", "yarn-beta-fast",
        "yarn-beta-slow", "no-yarn-correction-range-round-to-int", "mscale", "mscale-all-dim"},
       [this, type_text] {
         return position_embedding == PositionEmbedding::yarn ? "" : type_text();
       });
  f.of({"mup-base-hidden-size", "mup-base-head-dim", "mup-attn-scale-power", "mup-embedding-mult",
        "mup-output-mult"},
       [this] { return use_mup ? "" : "they are of --use-mup"; });
  f.of({"window-attn-skip-freq"},
       [this] { return window_size ? "" : "there is no --window-size"; });
  f.of({"openai-gelu"}, [this] {
    return bias_gelu_fusion ? "GELU is in its tanh form without --no-bias-gelu-fusion" : "";
  });
  f.of({"add-qkv-bias"}, [this] {
    return add_bias_linear ? "without --disable-bias-linear all linear layers have biases" : "";
  });
  f.of({"no-bias-gelu-fusion"}, [this] {
    return swiglu         ? "with --swiglu no GELU is computed"
           : squared_relu ? "with --squared-relu no GELU is computed"
           : quick_geglu  ? "with --quick-geglu no other GELU is computed"
                          : "";
  });
  f.of({"init-method-std"}, [this] {
    return init_method_xavier_uniform ? "--init-method-xavier-uniform draws the weights" : "";
  });
}

std::string ModelFlags::first_shape_flag() const {
  constexpr std::array kBeside = {"vocab-size", "hidden-dropout", "attention-dropout"};
  ModelFlags typed = *this, plain;
  Fields now, defaults;
  typed.fields(now);
  plain.fields(defaults);
  for (const auto& [name, value] : changed(now, defaults))
    if (std::ranges::find(kBeside, name) == kBeside.end()) return name;
  return {};
}

}  // namespace megatron::models
