// Choice of each token's experts, and the additions of training that keep their load balanced
// (kernels/route.h, kernels/router_loss.h).
#pragma once

#include <string>
#include <vector>

#include "autograd/metrics.h"
#include "kernels/route.h"
#include "nn/batch.h"
#include "nn/builder.h"
#include "nn/expert_load.h"
#include "nn/router_training.h"
#include "ops/router.h"

namespace megatron::nn {

struct MoeConfig;

// Names of the routers' metrics, each a mean over tokens for every layer with experts, in addition
// to those of expert_load.h.
inline constexpr std::string_view kAuxLoss = "aux_loss", kSequenceAuxLoss = "seq_aux_loss",
                                  kGlobalAuxLoss = "global_aux_loss",
                                  kRouterZLoss = "router_z_loss", kRouterEntropy = "router_entropy";
std::vector<MetricDefinition> router_metrics(const std::vector<ExpertLayer>& layers,
                                             const RouterTraining& training);

// True also in a forward pass that records nothing because backward runs it again.
inline bool trains(const Tape& tape) { return tape.pass() != Pass::evaluate; }

// Parameters <name>.weight [E,H] and .bias [E]; state .correction [E].
class Router {
 public:
  // layer: its index in the model, for its metrics; seed: of the random numbers of training.
  Router(Builder& builder, const std::string& name, int64_t layer, int64_t hidden,
         const MoeConfig& config, const RouterTraining& training, parallel::Init init,
         uint64_t seed);
  // Routes this rank's tokens x [T,H]. The experts of padding (batch.real) are -1.
  ops::Routing operator()(Tape& tape, const Var& x_TH, const Batch& batch) const;
  // The experts of this rank's choices, -1 for a choice beyond the `capacity` rows that an expert
  // has for each sequence, or fewer for those with padding. Ranks that divide sequences decide over
  // the choices of all of them.
  Tensor kept(Tape& tape, const ops::Routing& routing, int64_t capacity, const Batch& batch) const;
  // Bias added to the scores for choosing experts [E]; undefined: none.
  Tensor bias() const { return correction_ == nullptr ? Tensor() : correction_->value(); }
  // The correction bias if it observes the number of tokens of each expert; otherwise null.
  ModuleState* correction() const { return training_.quantile ? nullptr : correction_; }

 private:
  kernels::NoiseRows noise_of(const Batch& batch, std::string_view what) const;
  Var with_noise(Tape& tape, const Var& logits_TE, const Batch& batch) const;
  Tensor all_rows(Tape& tape, const Tensor& own, std::string_view call) const;
  int64_t first_held(int64_t own) const;
  int64_t first_row(int64_t own) const;
  Tensor all_counted(Tape& tape, const Batch& batch) const;
  Tensor even_choice(Tape& tape, const Tensor& logits_TE, const Batch& batch) const;
  void observe_thresholds(Tape& tape, const Tensor& logits_TE, const Batch& batch) const;
  Var with_losses(Tape& tape, const Var& logits_TE, const Batch& batch) const;
  struct BalanceLoss {
    int64_t segments = 1;       // of this rank's tokens
    int ranks = 1;              // tensor-parallel ranks that a segment lies on
    bool of_sequences = false;  // segments are sequences; otherwise the only one is the micro-batch
    double coefficient = 0, z = 0;
    std::string_view metric;  // name of the metric; empty: not reported
    bool reports_rest = false;
    bool of_step = false;  // counts all tokens of the step so far
  };
  BalanceLoss sequence_loss(int64_t length, int64_t own, int64_t sequences) const;
  Var add_balance_loss(Tape& tape, const Var& logits_TE, const Batch& batch,
                       const BalanceLoss& loss) const;
  Tensor inverses_of(const Batch& batch, const BalanceLoss& loss, int64_t own) const;
  Tensor shares_of_step(Tape& tape, const Tensor& counts) const;
  void sum_tensor_counts(Tape& tape, const Tensor& counts, int ranks) const;
  void sum_counts(Tape& tape, const Tensor& counts, int ranks) const;

  int64_t layer_;
  std::string name_;
  uint64_t seed_;
  kernels::RouterForm form_;
  int64_t experts_, choices_;
  parallel::TensorParallel tensor_;
  comm::Group* context_;   // have other tokens of the same sequences; null: one rank
  comm::Group* replicas_;  // have other tokens of the step; null: one rank
  RouterTraining training_;
  Weight weight_, bias_;
  ModuleState* correction_ = nullptr;
  StepSum* step_counts_ = nullptr;  // [E]; for the global loss
};

}  // namespace megatron::nn
