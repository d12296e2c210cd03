// Balance of the load of a layer's experts, counted in training with the step's metrics.
#pragma once

#include <span>
#include <vector>

#include "autograd/tape.h"
#include "nn/router_training.h"

namespace megatron::nn {

// Metrics of each layer with experts, over all tokens of a step, under these names in the log: the
// choices of the fullest expert divided by the mean; the share of choices that a capacity drops;
// the range (largest minus smallest) of the correction biases used in the step.
inline constexpr std::string_view kExpertLoad = "expert_load", kDroppedShare = "dropped_share",
                                  kBiasRange = "expert_bias_range";

struct ExpertLayer {
  int64_t layer = 0, experts = 0;
  bool correction_bias = false;
};

// layers: those with experts, ascending. Empty: no metrics. With a rank_capacity_factor, choices
// without a row make the step fail on all ranks, with an Error that names the layer, the limit and
// the flag.
std::vector<MetricDefinition> expert_metrics(const std::vector<ExpertLayer>& layers,
                                             const RouterTraining& training);

// A layer's contribution to these metrics. Choices are counted once per micro-batch (Tape::tally);
// the caller ensures that only one of the ranks that see the same tokens counts them.
class ExpertLoad {
 public:
  ExpertLoad(int64_t layer, int64_t experts) : layer_(layer), experts_(experts) {}

  // experts i32 [T,k]; those below 0 are none.
  void count_chosen(const Tape& tape, const Tensor& experts) const;
  // Counts the choices that have a row; rows i32 [T,k] (kernels/expert_rows.h).
  void count_kept(const Tape& tape, const Tensor& experts, const Tensor& rows) const;
  // Reports the rows that a rank's experts have room for and the most that any load needs, both the
  // same on every rank and in every call. Called on every rank.
  void take_room(const Tape& tape, int64_t rows, int64_t most) const;
  // bias f32 (f64) [E], the same in all of a rank's calls in a step. Called on every rank.
  void take_bias(const Tape& tape, const Tensor& bias) const;

 private:
  enum class Part { chosen, kept, bias, bias_ranks, room };
  void fill(const Tensor& out, double value, const Tape& tape) const;
  Tensor part(const Tape& tape, Part part) const;

  int64_t layer_, experts_;
};

}  // namespace megatron::nn
