// The flags that describe a model of any family, under Megatron-LM's names.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"
#include "models/moe_flags.h"
#include "nn/norm.h"

namespace megatron::models {

enum class PositionEmbedding { learned_absolute, rope, yarn, relative, none };
enum class SoftmaxType { vanilla, off_by_one, learnable };

// Flags as given; models::model_from_flags() makes a model of them.
struct ModelFlags {
  std::optional<int64_t> num_layers, decoder_num_layers, hidden_size, num_attention_heads,
      ffn_hidden_size, kv_channels;
  std::optional<int64_t> max_position_embeddings, vocab_size;
  bool group_query_attention = false;
  int64_t num_query_groups = 1;
  PositionEmbedding position_embedding = PositionEmbedding::learned_absolute;
  int64_t relative_buckets = 32, relative_max_distance = 128;
  double rotary_base = 10000;
  nn::Normalization normalization = nn::Normalization::layer_norm;
  double norm_epsilon = 1e-5;
  bool swiglu = false;
  bool add_bias_linear = true;
  bool add_qkv_bias = false;
  bool untie = false;
  std::optional<double> hidden_dropout,
      attention_dropout;  // default 0.1, or 0: zero_default_dropouts()
  double init_method_std = 0.02;
  std::optional<double> embedding_init_method_std;
  bool init_method_xavier_uniform = false;
  bool bias_gelu_fusion = true;  // false: exact GELU
  bool openai_gelu = false, squared_relu = false, quick_geglu = false;
  double glu_linear_offset = 0;
  std::optional<double> activation_clamp;
  bool layernorm_1p = false, qk_layernorm = false, qk_l2_norm = false;
  SoftmaxType softmax_type = SoftmaxType::vanilla;
  std::optional<std::string> window_size, window_attn_skip_freq, no_rope_freq;
  double rotary_percent = 1;
  bool rotary_interleaved = false;
  std::optional<double> rotary_interpolation;
  bool use_rope_scaling = false;
  double rope_scaling_factor = 8, rotary_scaling_factor = 1;
  std::optional<int64_t> yarn_original_positions;
  std::optional<double> yarn_beta_fast, yarn_beta_slow;
  bool yarn_round_to_int = true;
  double mscale = 1, mscale_all_dim = 0;
  std::optional<std::string> heterogeneous_layers, heterogeneous_layers_json;  // a file; its text
  bool attention_output_gate = false;
  bool multi_latent_attention = false;
  std::optional<int64_t> q_lora_rank;
  int64_t kv_lora_rank = 32, qk_head_dim = 128, qk_pos_emb_head_dim = 64, v_head_dim = 128;
  bool latent_yarn = true;                          // --rope-type, for multi-latent attention
  std::optional<std::string> hybrid_layer_pattern;  // in place of num_layers
  double hybrid_attention_ratio = 0, hybrid_mlp_ratio = 0;
  std::vector<std::string> spec;
  int64_t mamba_state_dim = 128, mamba_head_dim = 64, mamba_num_groups = 8;
  std::optional<int64_t> mamba_num_heads;
  bool use_mup = false;
  std::optional<int64_t> mup_base_hidden_size, mup_base_head_dim;
  double mup_embedding_mult = 1, mup_attn_scale_power = 1;
  std::optional<double> mup_output_mult;
  std::optional<int64_t> mtp_num_layers;
  double mtp_loss_scaling_factor = 0.1;
  bool mtp_detach_heads = false;
  // --task mlm: an encoder with a head for masked tokens, and unless --bert-no-binary-head another
  // one for pairs of texts.
  bool encoder = false, bert_binary_head = true;
  // --task span-corruption or seq2seq: an encoder of num_layers, and a decoder.
  bool encoder_decoder = false;
  std::optional<std::string> model_family;
  MoeFlags moe;

  void fields(Fields& fields);
  // True if layers have one block each: by a pattern, by shares of kinds, or by --spec. Throws
  // Error if --spec names something else than Megatron-LM's layers.
  bool is_hybrid() const;
  // The pattern of a hybrid, given or made for num_layers; none if this is no hybrid.
  std::optional<std::string> layer_pattern() const;
  // Returns a flag that differs from its default, or "" if there is none. Ignores flags that can be
  // combined with a model from a config.json (Field::with_any_model).
  std::string first_shape_flag() const;

 private:
  void position_fields(Fields& fields);
  void block_fields(Fields& fields);
  void latent_fields(Fields& fields);
  void hybrid_fields(Fields& fields);
  void composition_fields(Fields& fields);
  void weight_fields(Fields& fields);
  void prediction_fields(Fields& fields);
};

}  // namespace megatron::models
