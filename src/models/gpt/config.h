// The shape of a decoder-only transformer: GPT-2 and Llama are two settings of it.
#pragma once

#include <optional>
#include <string>

#include "base/json.h"
#include "kernels/activation.h"
#include "models/model_flags.h"
#include "nn/norm.h"

namespace megatron::models {

struct GptFamily;

struct GptConfig {
  // Whose config.json it came from; null: it came from flags, and family_of() says.
  const GptFamily* family = nullptr;
  int64_t num_layers = 0, hidden_size = 0, num_attention_heads = 0;
  int64_t ffn_hidden_size = 0;   // 0: 4 * hidden; gated: 8/3 * hidden, rounded down to 64
  int64_t num_query_groups = 0;  // 0: as many as heads
  int64_t kv_channels = 0;       // 0: hidden / heads
  int64_t max_position_embeddings = 0;
  int64_t vocab_size = 0;
  PositionEmbedding position_embedding = PositionEmbedding::learned_absolute;
  double rotary_base = 10000;
  nn::Normalization normalization = nn::Normalization::layer_norm;
  double norm_epsilon = 1e-5;
  kernels::Activation activation = kernels::Activation::gelu_tanh;
  bool gated = false;
  bool qkv_bias = true, attention_output_bias = true, mlp_bias = true;
  bool untied = false;  // own output weights
  double hidden_dropout = 0.1, attention_dropout = 0.1;
  double init_method_std = 0.02;
  std::optional<double>
      embedding_init_std;  // of the embeddings' initial weights; none: as all others
  bool xavier_init =
      false;  // matrices begin as parallel::Init::Kind::xavier_uniform, not as normals

  // Fills what was left at 0 and checks every size. Throws Error naming the values and the flags.
  void finalize();
};

// Of flags: not final, since a tokenizer may have the vocabulary's size. seq_length: position
// embeddings when --max-position-embeddings is not given. Throws Error naming a flag that is missing.
GptConfig config_of(const ModelFlags& flags, int64_t seq_length);
// The flags that describe a shape; dropouts included.
ModelFlags flags_of(const GptConfig& config);

// A shape by the names of its flags, to be compared and logged; without dropouts and initial
// standard deviation, on which no tensor's shape or meaning depends.
Json describe(const GptConfig& config);

}  // namespace megatron::models
