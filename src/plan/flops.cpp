#include "plan/flops.h"

#include "plan/megatron_flops.h"

namespace megatron::plan {

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

std::vector<FlopCount> step_flops(const models::GptConfig& config, int64_t padded_vocabulary,
                                  int64_t sequences, int64_t length) {
  const MegatronShape shape = megatron_shape(config, padded_vocabulary);
  const Tokens tokens = Tokens::alike(sequences, length);
  const auto megatron = [&](Attention attention) {
    return megatron_flops(shape, attention).total(tokens);
  };
  return {
      {std::string(kModelFlops), static_cast<double>(sequences) * training_flops(config, length)},
      {std::string(kMegatronFlops), megatron(Attention::causal)},
      {std::string(kMegatronFullAttentionFlops), megatron(Attention::full)}};
}

}  // namespace megatron::plan
