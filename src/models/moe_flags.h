// The flags of mixture-of-experts layers, under Megatron-LM's names.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"
#include "nn/moe.h"

namespace megatron::models {

struct MoeFlags {
  std::optional<int64_t> num_experts, ffn_hidden_size, latent_size, shared_ffn, num_groups,
      group_topk;
  std::string layer_freq = "1";  // layers with experts: every N-th, or a 1 (with) or 0 a layer
  int64_t topk = 2;
  kernels::RouterScore score = kernels::RouterScore::softmax;
  bool pre_softmax = false, enable_expert_bias = false, apply_probs_on_input = false,
       shared_expert_gate = false;
  std::optional<double> topk_scaling_factor;
  // Of training alone: a model that a config.json describes is trained with them, too.
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
  // Throws Error naming a coefficient that is no number, or lists that do not go together.
  nn::RouterTraining training() const;
  // Whether losses are chosen, other than by default, of which none is added.
  bool names_losses_without_coefficient() const;

 private:
  void set_balancing(nn::RouterTraining& training) const;
};

// Those of fields() that describe no model.
inline constexpr const char* kMoeTrainingFlags[] = {"moe-router-load-balancing-type",
                                                    "moe-aux-loss-coeff",
                                                    "moe-z-loss-coeff",
                                                    "moe-router-bias-update-rate",
                                                    "moe-expert-capacity-factor",
                                                    "moe-token-drop-policy",
                                                    "moe-expert-rank-capacity-factor",
                                                    "moe-pad-expert-input-to-capacity",
                                                    "moe-capacity-scope",
                                                    "moe-router-quantile-balancing-ema",
                                                    "moe-router-dtype",
                                                    "moe-input-jitter-eps",
                                                    "moe-router-force-load-balancing",
                                                    "moe-router-force-biased"};

}  // namespace megatron::models
