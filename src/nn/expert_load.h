// How evenly the experts of a layer are loaded, counted in training with the step's metrics.
#pragma once

#include <span>
#include <vector>

#include "autograd/tape.h"
#include "nn/router_training.h"

namespace megatron::nn {

// Figures of each layer with experts, over all tokens of a step, in the log by these names: the choices of the fullest
// expert over the mean of all; the share of choices that a capacity drops; how far the correction biases that the step
// chose by lie apart, the largest less the smallest.
inline constexpr std::string_view kExpertLoad = "expert_load", kDroppedShare = "dropped_share",
                                  kBiasRange = "expert_bias_range";

struct ExpertLayer {
  int64_t layer = 0, experts = 0;
  bool correction_bias = false;
};

// layers: those with experts, ascending. None: no metric. With a rank_capacity_factor, choices without a row let the
// step fail on all ranks, by an Error that names the layer, the limit and the flag.
std::vector<MetricDefinition> expert_metrics(const std::vector<ExpertLayer>& layers,
                                             const RouterTraining& training);

// What a layer adds to them. Choices are counted once a micro-batch (Tape::tally), and by one of the ranks that see the
// same, which its caller makes sure of.
class ExpertLoad {
 public:
  ExpertLoad(int64_t layer, int64_t experts) : layer_(layer), experts_(experts) {}

  // experts i32 [T,k].
  void count_chosen(const Tape& tape, const Tensor& experts) const;
  // Those with a row, rows i32 [T,k] (kernels/expert_rows.h).
  void count_kept(const Tape& tape, const Tensor& experts, const Tensor& rows) const;
  // The rows that a rank's experts have room for, and those that any load needs at most, the same on every rank and
  // whenever it is called. On every rank.
  void take_room(const Tape& tape, int64_t rows, int64_t most) const;
  // bias f32 (f64) [E], the same whenever a rank calls it in a step. On every rank.
  void take_bias(const Tape& tape, const Tensor& bias) const;

 private:
  enum class Part { chosen, kept, bias, bias_ranks, room };
  void fill(const Tensor& out, double value, const Tape& tape) const;
  Tensor part(const Tape& tape, Part part) const;

  int64_t layer_, experts_;
};

}  // namespace megatron::nn
