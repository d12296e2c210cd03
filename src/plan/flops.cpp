#include "plan/flops.h"

#include "plan/megatron_flops.h"

namespace megatron::plan {

std::vector<FlopCount> step_flops(const models::Model& model, int64_t padded_vocabulary,
                                  int64_t sequences, int64_t length) {
  const MegatronShape shape = megatron_shape(model->facts(), padded_vocabulary);
  const Tokens tokens = Tokens::alike(sequences, length);
  const auto megatron = [&](Attention attention) {
    return megatron_flops(shape, attention).total(tokens);
  };
  return {
      {std::string(kModelFlops), static_cast<double>(sequences) * model->training_flops(length)},
      {std::string(kMegatronFlops), megatron(Attention::causal)},
      {std::string(kMegatronFullAttentionFlops), megatron(Attention::full)}};
}

}  // namespace megatron::plan
