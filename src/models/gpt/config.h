// The shape of a decoder-only transformer: GPT-2 and Llama are two settings of it.
#pragma once

#include <optional>
#include <string>

#include "base/fields.h"
#include "base/json.h"
#include "kernels/activation.h"
#include "nn/norm.h"

namespace megatron::models {

// The largest tables.
constexpr int64_t kMaxVocabulary = 1 << 28, kMaxPositions = 1 << 28;

enum class PositionEmbedding { learned_absolute, rope };

struct GptConfig {
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

// The flags of a shape, under Megatron-LM's names, as they are typed; to_config turns them into a
// shape.
struct GptFlags {
  std::optional<int64_t> num_layers, hidden_size, num_attention_heads, ffn_hidden_size, kv_channels;
  std::optional<int64_t> max_position_embeddings, vocab_size;
  bool group_query_attention = false;
  int64_t num_query_groups = 1;
  PositionEmbedding position_embedding = PositionEmbedding::learned_absolute;
  double rotary_base = 10000;
  nn::Normalization normalization = nn::Normalization::layer_norm;
  double norm_epsilon = 1e-5;
  bool swiglu = false;
  bool add_bias_linear = true;
  bool add_qkv_bias = false;
  bool untie = false;
  std::optional<double> hidden_dropout, attention_dropout;  // default 0.1
  double init_method_std = 0.02;
  std::optional<double> embedding_init_method_std;
  bool init_method_xavier_uniform = false;
  bool bias_gelu_fusion = true;  // false: GELU in its exact form

  void fields(Fields& fields);
  // A flag that sets the shape and differs from its default; empty when there is none.
  std::string first_shape_flag() const;
  // seq_length: position embeddings when --max-position-embeddings is not given.
  GptConfig to_config(int64_t seq_length) const;
};

// The flags that describe a shape; dropouts included.
GptFlags flags_of(const GptConfig& config);

// A shape by the names of its flags, to be compared and logged; without dropouts and initial
// deviation, on which no tensor's shape or meaning depends.
Json describe(const GptConfig& config);

// From a Hugging Face config.json of model_type gpt2 or llama. Throws Error naming the key and the
// value that is not supported.
GptConfig config_from_hugging_face(const Json& config);
// Back: the keys transformers 5 writes. It keeps rope_theta in rope_parameters, which older readers
// overlook; a base other than the 10000 that they assume stands as rope_theta of its own, too. Both
// places are read, rope_parameters first. Throws Error when neither gpt2 nor llama can hold the
// shape, naming what stands in the way.
Json config_to_hugging_face(const GptConfig& config, DType stored);

}  // namespace megatron::models
