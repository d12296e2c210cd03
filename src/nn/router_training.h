#pragma once

#include <cstdint>
#include <optional>

#include "kernels/expert_rows.h"

namespace megatron::nn {

// Router settings that apply only in training, most of them for balancing the load of experts.
// Coefficients of losses, 0: none. The balance losses count over a micro-batch on one data-parallel
// rank (Fedus et al. 2022), over each sequence (DeepSeek-AI 2024), or over the step so far on all
// data-parallel ranks (Qiu et al. 2025); the z-loss penalises large logits (Zoph et al. 2022).
struct RouterTraining {
  double aux_loss = 0, sequence_aux_loss = 0, global_aux_loss = 0, z_loss = 0;
  double bias_update_rate = 1e-3;  // for the correction bias
  // Chooses experts by a balanced assignment of a micro-batch's tokens (kernels::SinkhornArgs); the
  // weights are unaffected.
  bool sinkhorn = false;
  // Sets the correction bias from the amount that each expert's score would have to lose for an
  // even load in each micro-batch (kernels::ExpertThresholdsArgs): a moving average of the step's
  // mean.
  bool quantile = false;
  double quantile_ema = 0;
  bool double_logits = false;  // f64 products and sums of the logits if the model's are f32
  double input_jitter = 0;  // width of the random factors of the router's input (Fedus et al. 2022)
  bool random_logits = false;  // replaces the router's logits, for an even load
  // Standard deviation of random numbers that are added to an expert's logits: the same for all
  // tokens of a sequence, or, if negative, always the same numbers; 0: none.
  double logits_bias = 0;
  // Maximum number of rows of an expert, as a multiple of the mean, for each sequence or for a
  // rank's micro-batch; 0: no limit. padded: always this many rows. Passes that are not
  // differentiated have no limit.
  double capacity_factor = 0;
  // Number of rows that a rank's experts have room for, as a multiple of an even load; 0: enough
  // for any load. A step that needs more fails (nn/expert_load.h).
  double rank_capacity_factor = 0;
  bool capacity_of_sequence = true, padded = false;
  kernels::KeptRows kept = kernels::KeptRows::largest;
  // Values in config.json for transformers' own trainers: they are kept, and have no effect here.
  std::optional<double> stated_aux_loss;
  bool states_router_logits = false;

  bool operator==(const RouterTraining&) const = default;
  // True if what training does with a token depends on which other tokens there are.
  bool counts_tokens() const {
    return aux_loss != 0 || sequence_aux_loss != 0 || global_aux_loss != 0 || z_loss != 0 ||
           sinkhorn || quantile || capacity_factor > 0;
  }
  // Throws Error naming the flags if `tensor_ranks` ranks that divide sequences of `length` tokens,
  // with `own` tokens each, cannot count what a loss of each sequence needs.
  void check_divided(int64_t length, int64_t own, int tensor_ranks) const;
};

}  // namespace megatron::nn
