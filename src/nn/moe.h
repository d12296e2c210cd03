// A feed-forward block of experts, with each token routed to a few of them (Shazeer et al. 2017;
// Lepikhin et al. 2021).
#pragma once

#include <memory>
#include <optional>

#include "kernels/route.h"
#include "nn/batch.h"
#include "nn/expert_load.h"
#include "nn/mlp.h"
#include "nn/replicated_linear.h"
#include "nn/router.h"
#include "ops/expert_low_rank.h"
#include "ops/expert_rows.h"

namespace megatron::nn {

struct MoeConfig {
  int64_t experts = 0, choices = 1;  // choices: experts per token
  kernels::RouterForm router;
  bool router_bias = false;  // adds a bias to the logits
  // A state added to the scores for choosing experts, but not to the weights (Wang et al. 2024).
  bool correction_bias = false;
  // Scales an expert's input instead of the input of its down-projection.
  bool weights_on_input = false;
  MlpConfig expert;
  // Width of the experts' input and output, with projections from and to the hidden size around
  // them; 0: the hidden size itself.
  int64_t latent = 0;
  // Feed-forward width of a shared expert, which every token goes through (Dai et al. 2024),
  // multiplied by the sigmoid of a gate if shared_gate; 0: none.
  int64_t shared_ffn = 0;
  bool shared_gate = false;

  bool operator==(const MoeConfig&) const = default;
  MlpConfig shared() const;
};

// Experts are divided among the ranks of RankGroup::expert, their feed-forward widths among those
// of expert_tensor. Parameters: those of <name>.router, .experts.up.weight [E,F,H] (gated: [E,2F,H]
// = [gate | up]) and .bias, .experts.down.weight [E,H,F] and .bias, .shared.up and .shared.down as
// in Mlp, .shared_gate.weight [1,H]. With a latent width L, experts have L in place of H, and every
// rank has all of <name>.latent_in.weight [L,H] and .latent_out.weight [H,L] and, if experts have
// biases, their biases. Modules of a tape: "moe" is the whole block; "moe_act" is everything
// between an expert's two products.
class Moe {
 public:
  // layer: its index in the model, for its metrics; seed: of the router's random numbers.
  Moe(Builder& builder, const std::string& name, int64_t layer, int64_t hidden,
      const MoeConfig& config, const RouterTraining& training, parallel::Init init,
      parallel::Init output_init, uint64_t seed);
  Var operator()(Tape& tape, const Var& x_TH, const Batch& batch) const;

  // Number of consecutive tokens that a capacity applies to, and the rows that it gives an expert,
  // of which tokens that may include padding have `factor` times an even load (0: all).
  struct Capacity {
    int64_t segment = 0, rows = 0;
    double factor = 0;
  };

  // The same in three parts, with calls to other ranks in flight between them: tokens are routed
  // and their transfer begins; this rank's experts compute, and the transfer of their results
  // begins; the results have arrived. The two halves of the shared expert are computed during the
  // transfers.
  struct Tokens {
    Var x_TH;
    Capacity capacity;
    bool counted = true;  // false in texts that are padded to a length: counts leave them out
    bool pads = false;    // there may be padding among them, which has no expert
    parallel::ChoicesInTransit choices;
    // In passes with stochastic rounding of gradients: the sample and the position of each token.
    parallel::ChoicesInTransit sample_ids, positions;
    std::shared_ptr<const parallel::TokenRoutes> routes;
    parallel::InTransit weights, tokens, results;
    Var shared_TH;
  };
  Tokens send(Tape& tape, const Var& x_TH, const Batch& batch) const;
  void compute(Tape& tape, Tokens& tokens) const;
  Var receive(Tape& tape, Tokens& tokens) const;
  // True if a forward pass may stop between the parts.
  bool stops() const { return ranks_.stops; }

 private:
  struct Adapters {
    const ops::ExpertLowRank *up, *down;  // null: none
  };
  Var through_experts(Tape& tape, const Var& x, const Var& weights, const ops::ExpertOrder& order,
                      const Adapters& adapters) const;
  std::optional<Var> with_additions(Tape& tape, const Var& x, const Var& weights,
                                    const Tensor& experts) const;
  Var activated(Tape& tape, const Var& v_RF, const Var& weights_R) const;
  Var shared_result(Tape& tape, const Var& x_TH, const Mlp::Inner& inner) const;
  Capacity capacity_of(Tape& tape, int64_t own_tokens, const Batch& batch) const;
  bool sees_sequences(int64_t own_tokens, const Batch& batch) const;
  int64_t most_rows(Tape& tape, int64_t tokens, const Capacity& capacity) const;
  int64_t rows_at(double load, int64_t tokens, int64_t most) const;
  int64_t existing_rows(const Tensor& offsets, int64_t tokens, int64_t most, bool padded) const;
  ops::ExpertOrder order_of(Tape& tape, const Tensor& experts, const Tensor& weights,
                            const Tokens& sent) const;
  bool rounds_by_chance(const Tape& tape) const;
  void send_places(Tape& tape, const Batch& batch, Tokens& sent) const;
  BatchRows places(Tape& tape, const Tokens& sent, const ops::ExpertOrder& order) const;
  void observe(const Tape& tape, const Tensor& experts) const;
  void report(const Tape& tape, const Tensor& experts, const Continuation& at) const;
  void observe_rows(Tape& tape, const Tensor& experts, const Tensor& rows) const;

  MoeConfig config_;
  int64_t layer_;
  parallel::TensorParallel tensor_;
  parallel::ExpertRanks ranks_;
  parallel::Slice held_;  // experts of this rank
  bool adds_bias_;        // whether it adds the down-projections' biases, of which ranks sum slices
  RouterTraining training_;
  ExpertLoad load_;
  Router router_;
  ModuleState* correction_;  // null if there is none
  Weight up_, up_bias_, down_, down_bias_;
  ops::ExpertLowRank up_adapter_, down_adapter_;
  std::unique_ptr<ReplicatedLinear> latent_in_, latent_out_;
  std::unique_ptr<Mlp> shared_;
  Weight shared_gate_;
};

}  // namespace megatron::nn
