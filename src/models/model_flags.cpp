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
  f.add_enum<PositionEmbedding>(
      "position-embedding-type", &position_embedding,
      {{"learned_absolute", PositionEmbedding::learned_absolute},
       {"rope", PositionEmbedding::rope}},
      "how positions enter: a learned table, or rotation of queries and keys");
  f.add("rotary-base", &rotary_base, "base of the rotary angles");
  f.add_enum<nn::Normalization>(
      "normalization", &normalization,
      {{"LayerNorm", nn::Normalization::layer_norm}, {"RMSNorm", nn::Normalization::rms_norm}},
      "normalisation before each block");
  f.add("norm-epsilon", &norm_epsilon, "added to the variance under the root");
  f.add_switch("swiglu", &swiglu, true,
               "gated feed-forward block with SiLU; else GELU (tanh form)");
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
  f.of({"rotary-base"}, [this] {
    const bool rope = position_embedding == PositionEmbedding::rope;
    return rope ? "" : "--position-embedding-type is learned_absolute";
  });
  f.of({"add-qkv-bias"}, [this] {
    return add_bias_linear ? "without --disable-bias-linear all linear layers have biases" : "";
  });
  f.of({"no-bias-gelu-fusion"},
       [this] { return swiglu ? "with --swiglu no GELU is computed" : ""; });
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
