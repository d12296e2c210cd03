#include "training/flops.h"

namespace megatron::training {

double training_flops(const models::GptConfig& c, int64_t length) {
  const auto d = [](int64_t v) { return static_cast<double>(v); };
  const double t = d(length), h = d(c.hidden_size), q = d(c.num_attention_heads * c.kv_channels),
               k = d(c.num_query_groups * c.kv_channels), f = d(c.ffn_hidden_size);
  const double projections = 2 * t * h * (q + 2 * k) + 2 * t * q * h;
  const double attention = 2 * (2 * t * t * q) / 2;  // scores and values, half of each
  const double mlp = 2 * t * h * f * (c.gated ? 3 : 2);
  const double head = 2 * t * h * d(c.vocab_size);
  return 3 * (d(c.num_layers) * (projections + attention + mlp) + head);
}

int64_t parameter_count(const models::GptConfig& c) {
  const int64_t h = c.hidden_size, q = c.num_attention_heads * c.kv_channels,
                k = c.num_query_groups * c.kv_channels, f = c.ffn_hidden_size,
                up = c.gated ? 2 * f : f;
  const int64_t norm = c.normalization == nn::Normalization::layer_norm ? 2 * h : h;
  const int64_t layer = 2 * norm + h * (q + 2 * k) + (c.qkv_bias ? q + 2 * k : 0) + q * h +
                        (c.attention_output_bias ? h : 0) + h * up + f * h +
                        (c.mlp_bias ? up + h : 0);
  const int64_t positions = c.position_embedding == models::PositionEmbedding::learned_absolute
                                ? c.max_position_embeddings * h
                                : 0;
  return c.num_layers * layer + norm + positions + c.vocab_size * h * (c.untied ? 2 : 1);
}

}  // namespace megatron::training
