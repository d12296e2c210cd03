// The flags of mixture-of-experts layers, under Megatron-LM's names.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"
#include "nn/moe.h"

namespace megatron::models {

// Upper bound of a size that a flag gives; values have closer limits.
constexpr int64_t kMaxFlagSize = 1 << 28;

struct MoeFlags {
  std::optional<int64_t> num_experts, ffn_hidden_size, latent_size, shared_ffn, num_groups,
      group_topk;
  // N: every N-th layer has experts; a list has 1 (experts) or 0 (dense) per layer
  std::string layer_freq = "1";
  int64_t topk = 2;
  kernels::RouterScore score = kernels::RouterScore::softmax;
  bool pre_softmax = false, enable_expert_bias = false, apply_probs_on_input = false,
       shared_expert_gate = false;
  std::optional<double> topk_scaling_factor;
  // Training only: they also apply to a model that a config.json describes.
  std::vector<std::string> load_balancing_type = {"aux_loss"};
  std::vector<std::string> aux_loss_coeff = {"0"};
  std::optional<double> z_loss_coeff;
  double bias_update_rate = 1e-3, quantile_ema = 0;
  std::optional<double> input_jitter, force_biased;
  bool force_load_balancing = false, double_logits = false;
  std::optional<double> capacity_factor, rank_capacity_factor;
  kernels::KeptRows drop_policy = kernels::KeptRows::largest;
  bool pad_to_capacity = false, capacity_of_sequence = true;

  void fields(Fields& fields);
  // Throws Error naming a coefficient that is not a number, or lists that do not match.
  nn::RouterTraining training() const;
  // True if losses are chosen explicitly although all of their coefficients are zero.
  bool names_losses_without_coefficient() const;

 private:
  void training_fields(Fields& fields);
  void set_balancing(nn::RouterTraining& training) const;
};

}  // namespace megatron::models
