#include "models/model_flags.h"

#include "models/hybrid_pattern.h"

namespace megatron::models {

void ModelFlags::fields(Fields& f) {
  f.begin_group("model");
  f.add("num-layers", &num_layers,
        "number of layers: of the decoder, or of the encoder if there is one")
      .in_short_help()
      .within(1, kMaxFlagSize);
  f.add("decoder-num-layers", &decoder_num_layers,
        "number of layers of the decoder of an encoder-decoder; default --num-layers")
      .within(1, kMaxFlagSize)
      .of([this] { return encoder_decoder ? "" : "--task is not span-corruption or seq2seq"; });
  f.add("hidden-size", &hidden_size, "width of the residual stream")
      .in_short_help()
      .within(1, kMaxFlagSize);
  f.add("ffn-hidden-size", &ffn_hidden_size,
        "width of the feed-forward block; default 4 x hidden, with --swiglu 8/3 x hidden rounded "
        "down to a multiple of 64")
      .within(1, kMaxFlagSize);
  f.add("num-attention-heads", &num_attention_heads, "number of query heads")
      .in_short_help()
      .within(1, kMaxFlagSize);
  f.add("kv-channels", &kv_channels, "head dimension; default hidden size / number of heads")
      .within(1, kMaxFlagSize);
  f.add_switch("group-query-attention", &group_query_attention, true,
               "grouped-query attention: several query heads share a key-value head");
  f.add("num-query-groups", &num_query_groups,
        "number of key-value heads with "
        "--group-query-attention")
      .within(1, kMaxFlagSize);
  f.add("max-position-embeddings", &max_position_embeddings,
        "longest sequence the model supports; default --seq-length");
  f.add("vocab-size", &vocab_size,
        "vocabulary size; default the tokenizer's; with --model it may exceed the directory's, and "
        "the new tokens start untrained")
      .in_short_help()
      .with_any_model();
  position_fields(f);
  block_fields(f);
  latent_fields(f);
  hybrid_fields(f);
  composition_fields(f);
  weight_fields(f);
  prediction_fields(f);
  moe.fields(f);
}

void ModelFlags::position_fields(Fields& f) {
  const auto type = [this](bool fits) -> std::string {
    if (fits) return "";
    switch (position_embedding) {
      case PositionEmbedding::learned_absolute:
        return "--position-embedding-type is learned_absolute";
      case PositionEmbedding::rope: return "--position-embedding-type is rope";
      case PositionEmbedding::yarn: return "--position-embedding-type is yarn";
      case PositionEmbedding::relative: return "--position-embedding-type is relative";
      default: return "--position-embedding-type is none";
    }
  };
  const auto rope = [this, type] { return type(position_embedding == PositionEmbedding::rope); };
  const auto yarn = [this, type] {
    return type(
        position_embedding == PositionEmbedding::yarn ||
        (multi_latent_attention && latent_yarn && position_embedding == PositionEmbedding::rope));
  };
  const auto rotated = [rope, yarn] { return rope().empty() ? rope() : yarn(); };
  f.add_enum<PositionEmbedding>("position-embedding-type", &position_embedding,
                                {{"learned_absolute", PositionEmbedding::learned_absolute},
                                 {"rope", PositionEmbedding::rope},
                                 {"yarn", PositionEmbedding::yarn},
                                 {"relative", PositionEmbedding::relative},
                                 {"none", PositionEmbedding::none}},
                                "learned position embeddings, RoPE, RoPE with YaRN scaling (for "
                                "a longer context than the model was trained on), T5's relative "
                                "positions (of encoder-decoders), or none");
  const auto relative = [this, type] {
    return type(position_embedding == PositionEmbedding::relative);
  };
  f.add(
       "relative-attention-num-buckets", &relative_buckets,
       "buckets of distances of --position-embedding-type relative, each with a bias for each head")
      .of(relative);
  f.add("relative-attention-max-distance", &relative_max_distance,
        "distance from which on all distances share the last bucket of --position-embedding-type "
        "relative")
      .of(relative);
  f.add("rotary-base", &rotary_base, "base (theta) of RoPE").of(rotated);
  f.add("rotary-percent", &rotary_percent,
        "fraction of each head's dims that is rotated, in (0, "
        "1]")
      .of(rope);
  f.add_switch("rotary-interleaved", &rotary_interleaved, true,
               "rotate adjacent dims (2i, 2i+1) as a pair; by default dims that are half the "
               "rotated dims apart")
      .of(rotated);
  f.add("rotary-seq-len-interpolation-factor", &rotary_interpolation,
        "linear RoPE scaling: positions are divided by this factor")
      .of(rope);
  f.add_switch("use-rope-scaling", &use_rope_scaling, true,
               "Llama 3.1's RoPE scaling, for contexts beyond 8,192 tokens")
      .of(rope);
  f.add("rope-scaling-factor", &rope_scaling_factor,
        "context extension factor of --use-rope-scaling")
      .of([this] { return use_rope_scaling ? "" : "--use-rope-scaling is not given"; });
  f.begin_mode(yarn);
  f.add("rotary-scaling-factor", &rotary_scaling_factor,
        "context extension factor of YaRN: with --position-embedding-type yarn, or "
        "--multi-latent-attention");
  f.add("yarn-original-max-position-embeddings", &yarn_original_positions,
        "YaRN: context length before extension; default 4096");
  f.add("yarn-beta-fast", &yarn_beta_fast,
        "YaRN: frequencies with more rotations than this over the original context are kept; "
        "default 32");
  f.add("yarn-beta-slow", &yarn_beta_slow,
        "YaRN: frequencies with fewer rotations than this are fully interpolated; default 1");
  f.add_switch("no-yarn-correction-range-round-to-int", &yarn_round_to_int, false,
               "YaRN: do not round the bounds of the interpolated dims to integers");
  f.add("mscale", &mscale, "YaRN: scale of cos and sin, 0.1 x mscale x ln(factor) + 1");
  f.add("mscale-all-dim", &mscale_all_dim,
        "YaRN: divisor of cos and sin, 0.1 x mscale-all-dim x ln(factor) + 1; with "
        "--multi-latent-attention its square multiplies attention scores");
  f.begin_mode();
  f.add("no-rope-freq", &no_rope_freq,
        "which layers have no RoPE: N means every N-th layer; a list has 1 (no RoPE) or 0 (RoPE) "
        "per layer, \"[0,0,0,1]*8\"")
      .of(rotated);
}

void ModelFlags::block_fields(Fields& f) {
  f.add_enum<nn::Normalization>(
      "normalization", &normalization,
      {{"LayerNorm", nn::Normalization::layer_norm}, {"RMSNorm", nn::Normalization::rms_norm}},
      "normalization before each block");
  f.add_switch("apply-layernorm-1p", &layernorm_1p, true,
               "multiply by 1 + weight in norms, so that weight decay pulls the scale towards 1");
  f.add_switch("qk-layernorm", &qk_layernorm, true,
               "normalize each head of queries and keys, with --normalization");
  f.add_switch("qk-l2-norm", &qk_l2_norm, true,
               "divide each head of queries and keys by its root mean square");
  f.add("norm-epsilon", &norm_epsilon, "epsilon added to the variance in norms");
  f.add_switch("swiglu", &swiglu, true,
               "SwiGLU feed-forward block; default GELU (tanh approximation)");
  f.add_switch("squared-relu", &squared_relu, true,
               "feed-forward block with squared ReLU, "
               "max(x, 0)^2");
  f.add_switch("quick-geglu", &quick_geglu, true,
               "gated feed-forward block with quick GELU, x sigmoid(1.702 x) (GPT-OSS)");
  f.add("glu-linear-offset", &glu_linear_offset,
        "constant added to the linear half of a gated feed-forward block");
  f.add("activation-func-clamp-value", &activation_clamp,
        "gated feed-forward block: clamp the gate to at most this, and the linear half to +-this");
  f.add_switch("openai-gelu", &openai_gelu, true,
               "tanh approximation of GELU, even with --no-bias-gelu-fusion")
      .of([this] {
        return bias_gelu_fusion
                   ? "without --no-bias-gelu-fusion GELU is the tanh approximation anyway"
                   : "";
      });
  f.add("window-size", &window_size,
        "sliding window: how many earlier and later tokens a token attends to, besides itself: "
        "\"127,0\"; -1: all");
  f.add("window-attn-skip-freq", &window_attn_skip_freq,
        "which layers ignore --window-size: N means every N-th layer; a list has 0 (full "
        "attention) or 1 (window) per layer")
      .of([this] { return window_size ? "" : "--window-size is not given"; });
  f.add_enum<SoftmaxType>(
      "softmax-type", &softmax_type,
      {{"vanilla", SoftmaxType::vanilla},
       {"off-by-one", SoftmaxType::off_by_one},
       {"learnable", SoftmaxType::learnable}},
      "attention sink, an extra softmax logit without a value: none, fixed at 0, or one learned "
      "per head");
}

void ModelFlags::latent_fields(Fields& f) {
  f.add_switch("multi-latent-attention", &multi_latent_attention, true,
               "compute keys and values from one latent vector per token, which is all that "
               "inference caches (DeepSeek-V2); with --position-embedding-type rope or none");
  f.begin_mode(
      [this] { return multi_latent_attention ? "" : "--multi-latent-attention is not given"; });
  f.add("q-lora-rank", &q_lora_rank,
        "width of the latent vector of queries; default: none, queries are computed directly")
      .within(1, kMaxFlagSize);
  f.add("kv-lora-rank", &kv_lora_rank, "width of the latent vector of keys and values")
      .within(1, kMaxFlagSize);
  f.add("qk-head-dim", &qk_head_dim, "dims of each head of queries and keys without rotation")
      .within(1, kMaxFlagSize);
  f.add("qk-pos-emb-head-dim", &qk_pos_emb_head_dim,
        "rotated dims of each head of queries; those of keys are shared by all heads")
      .within(1, kMaxFlagSize);
  f.add("v-head-dim", &v_head_dim, "dims of each head of values").within(1, kMaxFlagSize);
  f.add_enum<bool>("rope-type", &latent_yarn, {{"rope", false}, {"yarn", true}},
                   "rotary positions without scaling, or with that of YaRN "
                   "(--rotary-scaling-factor)");
  f.begin_mode();
}

void ModelFlags::hybrid_fields(Fields& f) {
  f.add("hybrid-layer-pattern", &hybrid_layer_pattern,
        "a letter for each layer, which has one block: M (Mamba-2 state space), * (attention), + "
        "(multi-latent attention), - (MLP), E (experts), \"M-M*-\"; | between pipeline stages");
  const auto patterned = [this] {
    return hybrid_layer_pattern ? "--hybrid-layer-pattern has a letter for each layer" : "";
  };
  f.add("hybrid-attention-ratio", &hybrid_attention_ratio,
        "fraction of the --num-layers layers that are attention, instead of a pattern; "
        "--hybrid-mlp-ratio is the fraction of MLPs, and the rest are state spaces")
      .of(patterned);
  f.add("hybrid-mlp-ratio", &hybrid_mlp_ratio,
        "share of the --num-layers layers that are MLPs, in place of a pattern")
      .of(patterned);
  f.add(
       "spec", &spec,
       "Megatron-LM's Python module and object that define the layers; only those of hybrid models "
       "are supported: megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec; without a "
       "pattern or ratios each of the --num-layers layers is then a state space")
      .with_any_model();
  f.begin_mode([this] { return is_hybrid() ? "" : "--hybrid-layer-pattern is not given"; });
  f.add("mamba-state-dim", &mamba_state_dim, "numbers of a state for each input of its head")
      .within(1, kMaxFlagSize);
  f.add("mamba-head-dim", &mamba_head_dim, "inputs of each head of a state space")
      .within(1, kMaxFlagSize);
  f.add("mamba-num-groups", &mamba_num_groups,
        "groups of heads of a state space; the heads of a group read and write their states by "
        "the same vectors")
      .within(1, kMaxFlagSize);
  f.add("mamba-num-heads", &mamba_num_heads,
        "heads of a state space; default 2 x --hidden-size / --mamba-head-dim")
      .within(1, kMaxFlagSize);
  f.begin_mode();
}

void ModelFlags::composition_fields(Fields& f) {
  const auto mup = [this] { return use_mup ? "" : "--use-mup is not given"; };
  f.add("heterogeneous-layers-config-path", &heterogeneous_layers,
        "JSON file with the attention and feed-forward block of each layer (block_configs)");
  f.add("heterogeneous-layers-config-encoded-json", &heterogeneous_layers_json,
        "contents of --heterogeneous-layers-config-path as text instead of a file");
  f.add_switch("attention-output-gate", &attention_output_gate, true,
               "multiply attention's output by a sigmoid gate computed from its input");
  f.add_switch(
      "use-mup", &use_mup, true,
      "maximal update parametrization (muP): hyperparameters tuned on a narrow model transfer to "
      "a wide one");
  f.begin_mode(mup);
  f.add("mup-base-hidden-size", &mup_base_hidden_size,
        "muP: --hidden-size of the narrow model; default this model's")
      .within(1, kMaxFlagSize);
  f.add("mup-base-head-dim", &mup_base_head_dim,
        "muP: head dimension of the narrow model; attention scores are multiplied by its square "
        "root")
      .within(1, kMaxFlagSize);
  f.add("mup-attn-scale-power", &mup_attn_scale_power,
        "muP: power of the head dimension that attention scores are divided by");
  f.add("mup-embedding-mult", &mup_embedding_mult, "muP: factor that embeddings are multiplied by");
  f.add("mup-output-mult", &mup_output_mult,
        "muP: factor that logits are multiplied by; default base hidden size / hidden size");
  f.begin_mode();
  f.add("model-family", &model_family,
        "Hugging Face model_type to save as; default the first that can represent the model. With "
        "--task mlm, bert gives the model the norms of Hugging Face's BERT, after each residual "
        "sum, instead of Megatron-LM's, before each block");
  f.add_switch("bert-no-binary-head", &bert_binary_head, false,
               "--task mlm without the head that tells whether the second of two texts follows the "
               "first; samples are single texts");
  f.of({"bert-no-binary-head"}, [this] { return encoder ? "" : "--task is not mlm"; });
}

void ModelFlags::weight_fields(Fields& f) {
  f.add_switch("disable-bias-linear", &add_bias_linear, false, "no biases in linear layers");
  f.add_switch("add-qkv-bias", &add_qkv_bias, true,
               "biases on queries, keys and values even with --disable-bias-linear")
      .of([this] {
        return add_bias_linear ? "without --disable-bias-linear all linear layers have biases" : "";
      });
  f.add_switch("untie-embeddings-and-output-weights", &untie, true,
               "give the output layer its "
               "own weights instead of the "
               "embedding's");
  f.add("hidden-dropout", &hidden_dropout,
        "dropout after the embedding, attention and feed-forward blocks; default 0.1, or 0 if the "
        "config.json of the model's family cannot represent it (--model-family megatron can)")
      .with_any_model();
  f.add("attention-dropout", &attention_dropout,
        "dropout on attention probabilities; same default as --hidden-dropout")
      .with_any_model();
  f.add("init-method-std", &init_method_std,
        "standard deviation of the initial weights; divided by sqrt(2 x layers) for the output "
        "projections of blocks")
      .of([this] {
        return init_method_xavier_uniform ? "--init-method-xavier-uniform draws the weights" : "";
      });
  f.add("embedding-init-method-std", &embedding_init_method_std,
        "standard deviation of the embeddings' initial weights; default --init-method-std");
  f.add_switch(
      "init-method-xavier-uniform", &init_method_xavier_uniform, true,
      "draw the initial weights of all matrices uniformly from [-a, a], a = sqrt(6 / (inputs + "
      "outputs))");
  f.add_switch("no-bias-gelu-fusion", &bias_gelu_fusion, false,
               "exact GELU, x Phi(x), which Megatron-LM computes when it does not fuse GELU with "
               "the bias; default the tanh approximation")
      .of([this] {
        return swiglu         ? "no GELU is computed with --swiglu"
               : squared_relu ? "no GELU is computed with --squared-relu"
               : quick_geglu  ? "no other GELU is computed with --quick-geglu"
                              : "";
      });
}

void ModelFlags::prediction_fields(Fields& f) {
  const auto none = [this] { return mtp_num_layers == 0 ? "--mtp-num-layers is 0" : ""; };
  f.add("mtp-num-layers", &mtp_num_layers,
        "multi-token prediction: number of layers after the last one, each of which is trained to "
        "predict one token further ahead (DeepSeek-V3); default: the number in the model's "
        "directory (num_nextn_predict_layers), otherwise 0")
      .with_any_model()
      .within(0, 16);
  f.add("mtp-loss-scaling-factor", &mtp_loss_scaling_factor,
        "factor of the mean of the losses of multi-token prediction in the objective")
      .with_any_model()
      .of(none);
  f.add_switch("mtp-detach-heads", &mtp_detach_heads, true,
               "train only the layers of multi-token prediction by their losses, which have no "
               "gradient in the other layers, the embedding and the output layer, and clip their "
               "gradients by a norm of their own")
      .with_any_model()
      .of(none);
}

bool ModelFlags::is_hybrid() const {
  const bool named = names_hybrid_stack(spec);
  return named || hybrid_layer_pattern || hybrid_attention_ratio != 0 || hybrid_mlp_ratio != 0;
}

std::optional<std::string> ModelFlags::layer_pattern() const {
  const bool hybrid = is_hybrid();  // Refuses an unknown --spec, even with a pattern.
  if (hybrid_layer_pattern || !hybrid || !num_layers) return hybrid_layer_pattern;
  return allocated_layers(*num_layers, hybrid_attention_ratio, hybrid_mlp_ratio);
}

std::string ModelFlags::first_shape_flag() const {
  ModelFlags typed = *this, plain;
  Fields now, defaults;
  typed.fields(now);
  plain.fields(defaults);
  for (const auto& [name, value] : changed(now, defaults))
    if (!now.find(name)->beside_model) return name;
  return {};
}

}  // namespace megatron::models
