#pragma once

#include <cstdint>
#include <optional>

#include "kernels/expert_rows.h"

namespace megatron::nn {

// What routers do in training runs alone, most of it to keep the load of experts even. Coefficients of losses, 0:
// none, whose counts are those of a micro-batch on one data-parallel rank (Fedus et al. 2022), of each sequence
// (DeepSeek-AI 2024), or of the step so far on all data-parallel ranks (Qiu et al. 2025); of the logits' size (Zoph
// et al. 2022).
struct RouterTraining {
  double aux_loss = 0, sequence_aux_loss = 0, global_aux_loss = 0, z_loss = 0;
  double bias_update_rate = 1e-3;  // of the correction bias
  // Experts are chosen by an even assignment of a micro-batch's tokens (kernels::SinkhornArgs), the weights staying as
  // they are.
  bool sinkhorn = false;
  // The correction bias is set by what each expert's score would have to lose for an even load in each micro-batch
  // (kernels::ExpertThresholdsArgs), the mean of a step's, of which it keeps a moving average.
  bool quantile = false;
  double quantile_ema = 0;
  bool double_logits = false;  // their products and sums in f64, where the model's are in f32
  double input_jitter = 0;     // width of random factors of the router's input (Fedus et al. 2022)
  bool random_logits = false;  // in place of the router's: an even load
  // Standard deviation of random numbers that are added to an expert's logits: alike for the tokens of a sequence, or
  // where it is below 0 the same ones always; 0: none.
  double logits_bias = 0;
  // Rows of an expert at most, as a multiple of the mean, of each sequence or of a rank's micro-batch; 0: no limit.
  // padded: always so many. Passes that are not differentiated have no limit.
  double capacity_factor = 0;
  // Rows that a rank's experts have room for, as a multiple of what an even load gives them; 0: for any load. A step
  // that needs more fails (nn/expert_load.h).
  double rank_capacity_factor = 0;
  bool capacity_of_sequence = true, padded = false;
  kernels::KeptRows kept = kernels::KeptRows::largest;
  // What config.json states for transformers' own trainers: it is kept, and changes nothing here.
  std::optional<double> stated_aux_loss;
  bool states_router_logits = false;

  bool operator==(const RouterTraining&) const = default;
  // Throws Error naming the flags where `tensor_ranks` ranks that divide sequences of `length` tokens, `own` each, cannot
  // tell what a loss or a capacity of each sequence counts. expert_ranks: those that see each other's tokens.
  void check_divided(int64_t length, int64_t own, int tensor_ranks, int expert_ranks) const;
};

}  // namespace megatron::nn
