#include "models/moe_flags.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text_parts.h"

namespace megatron::models {
namespace {

double coefficient(const std::string& text) {
  const double value = parse_number<double>(text).value_or(-1);
  MG_CHECK(std::isfinite(value) && value >= 0,
           "--moe-aux-loss-coeff is '{}'; it must be a number, 0 or more", text);
  return value;
}

}  // namespace

void MoeFlags::fields(Fields& f) {
  f.add("num-experts", &num_experts,
        "experts of each layer that has them, in place of one feed-forward block; default none")
      .within(1, kMaxFlagSize);
  const auto experts = [this] { return num_experts ? "" : "there is no --num-experts"; };
  f.begin_mode(experts);
  f.add("moe-layer-freq", &layer_freq,
        "layers with experts: every N-th, or one 0 or 1 (with) per layer, \"([0]*1+[1]*26)\"");
  f.add("moe-ffn-hidden-size", &ffn_hidden_size, "width of an expert; default --ffn-hidden-size")
      .within(1, kMaxFlagSize);
  f.add("moe-latent-size", &latent_size,
        "width of what experts take and give, between two projections from and to --hidden-size, "
        "which the router and the shared expert see; default none")
      .within(1, kMaxFlagSize);
  f.add("moe-router-topk", &topk, "experts that each token goes through");
  f.add_enum<kernels::RouterScore>(
      "moe-router-score-function", &score,
      {{"softmax", kernels::RouterScore::softmax},
       {"sigmoid", kernels::RouterScore::sigmoid},
       {"sqrtsoftplus", kernels::RouterScore::sqrt_softplus}},
      "function from router logits to expert scores; other than softmax, the scores of a token's "
      "experts are divided by their sum");
  f.add_switch("moe-router-pre-softmax", &pre_softmax, true,
               "softmax over all experts before a token's experts are chosen; else over the chosen "
               "ones");
  f.add("moe-router-topk-scaling-factor", &topk_scaling_factor,
        "factor of the weights of a token's experts; default 1");
  f.add("moe-router-num-groups", &num_groups,
        "experts in so many equal groups, of which a token uses --moe-router-group-topk");
  f.add("moe-router-group-topk", &group_topk, "groups of experts that a token may use");
  f.add_switch("moe-router-enable-expert-bias", &enable_expert_bias, true,
               "balance the experts by a bias on their scores that only affects which experts are "
               "chosen, updated once a step; needs --moe-router-score-function sigmoid or "
               "sqrtsoftplus");
  f.add("moe-router-bias-update-rate", &bias_update_rate,
        "how much --moe-router-enable-expert-bias raises or lowers a bias per step")
      .of([this] {
        return enable_expert_bias ? "" : "there is no --moe-router-enable-expert-bias";
      })
      .with_any_model();
  f.add_switch("moe-apply-probs-on-input", &apply_probs_on_input, true,
               "multiply an expert's input by its weight instead of its activations; needs "
               "--moe-router-topk 1");
  f.add("moe-shared-expert-intermediate-size", &shared_ffn,
        "width of a shared expert, which every token goes through; default none");
  f.add_switch("moe-shared-expert-gate", &shared_expert_gate, true,
               "multiply the shared expert's output by a sigmoid gate computed from its input");
  f.begin_mode(experts, true);
  training_fields(f);
  f.begin_mode();
}

void MoeFlags::training_fields(Fields& f) {
  const auto limit = [this] {
    return !capacity_factor        ? "there is no --moe-expert-capacity-factor"
           : *capacity_factor <= 0 ? "--moe-expert-capacity-factor is no limit unless above 0"
                                   : "";
  };
  f.add(
      "moe-router-load-balancing-type", &load_balancing_type,
      "losses that balance the experts' load: aux_loss (over a micro-batch), seq_aux_loss (over "
      "each sequence), global_aux_loss (over the step so far), none; or, alone, sinkhorn (an even "
      "assignment of a micro-batch) or quantile_balancing (a bias from quantiles of the scores)");
  f.add("moe-aux-loss-coeff", &aux_loss_coeff,
        "coefficient of each of --moe-router-load-balancing-type; 0: none");
  f.add("moe-router-quantile-balancing-ema", &quantile_ema,
        "share of the bias of quantile_balancing that a step leaves; 0: each step sets it anew")
      .of([this] {
        return std::ranges::find(load_balancing_type, "quantile_balancing") ==
                       load_balancing_type.end()
                   ? "--moe-router-load-balancing-type is not quantile_balancing"
                   : "";
      });
  f.add_enum<bool>("moe-router-dtype", &double_logits, {{"fp32", false}, {"fp64", true}},
                   "precision of the products that make router logits, and of their gradients, in "
                   "training runs; logits and scores are rounded to fp32");
  f.add("moe-input-jitter-eps", &input_jitter,
        "training: multiply the router's input by random factors within this of 1; default none");
  f.add_switch("moe-router-force-load-balancing", &force_load_balancing, true,
               "training: random logits in place of the router's, for an even load in benchmarks");
  f.add("moe-router-force-biased", &force_biased,
        "training: standard deviation of random numbers added to each expert's logits, for an "
        "uneven load in benchmarks: new ones in each sequence, or below 0 always the same");
  f.add("moe-z-loss-coeff", &z_loss_coeff,
        "coefficient of the router z-loss, which keeps router logits small; default none");
  f.add(
      "moe-expert-capacity-factor", &capacity_factor,
      "training: tokens of an expert at most, as a multiple of the mean; those above are dropped; "
      "default no limit");
  f.add_enum<kernels::KeptRows>(
       "moe-token-drop-policy", &drop_policy,
       {{"probs", kernels::KeptRows::largest}, {"position", kernels::KeptRows::first}},
       "tokens kept within --moe-expert-capacity-factor: those of largest "
       "weight or the first")
      .of(limit);
  f.add_switch("moe-pad-expert-input-to-capacity", &pad_to_capacity, true,
               "give every expert as many rows as --moe-expert-capacity-factor allows, so that "
               "shapes are fixed")
      .of(limit);
  f.add_enum<bool>(
       "moe-capacity-scope", &capacity_of_sequence, {{"sequence", true}, {"microbatch", false}},
       "tokens that --moe-expert-capacity-factor counts over: each sequence, which does "
       "not depend on the layout, or a rank's micro-batch, as Megatron-LM does")
      .of(limit);
  f.add(
      "moe-expert-rank-capacity-factor", &rank_capacity_factor,
      "training: room for tokens of a rank's experts, as a multiple of an even load, 1 or more; a "
      "step that needs more ends the run; default as much as any load can need");
}

bool MoeFlags::names_losses_without_coefficient() const {
  const nn::RouterTraining r = training();
  const bool none = r.aux_loss == 0 && r.sequence_aux_loss == 0 && r.global_aux_loss == 0 &&
                    !r.sinkhorn && !r.quantile;
  return none && load_balancing_type != MoeFlags().load_balancing_type &&
         load_balancing_type != std::vector<std::string>{"none"};
}

nn::RouterTraining MoeFlags::training() const {
  nn::RouterTraining training{.z_loss = z_loss_coeff.value_or(0),
                              .bias_update_rate = bias_update_rate,
                              .quantile_ema = quantile_ema,
                              .double_logits = double_logits,
                              .input_jitter = input_jitter.value_or(0),
                              .random_logits = force_load_balancing,
                              .logits_bias = force_biased.value_or(0),
                              .capacity_factor = std::max(0.0, capacity_factor.value_or(0)),
                              .rank_capacity_factor = rank_capacity_factor.value_or(0),
                              .capacity_of_sequence = capacity_of_sequence,
                              .padded = pad_to_capacity,
                              .kept = drop_policy};
  MG_CHECK(std::isfinite(training.capacity_factor),
           "--moe-expert-capacity-factor is {}; it must be a number above 0", *capacity_factor);
  MG_CHECK(training.input_jitter >= 0 && training.input_jitter <= 1,
           "--moe-input-jitter-eps is {}; it must lie in [0, 1]", training.input_jitter);
  MG_CHECK(std::isfinite(training.logits_bias),
           "--moe-router-force-biased is {}; it must be finite", training.logits_bias);
  MG_CHECK(quantile_ema >= 0 && quantile_ema < 1,
           "--moe-router-quantile-balancing-ema is {}; it must lie in [0, 1)", quantile_ema);
  MG_CHECK(
      !rank_capacity_factor || (std::isfinite(*rank_capacity_factor) && *rank_capacity_factor >= 1),
      "--moe-expert-rank-capacity-factor is {}; it must be 1 or more: an even load needs 1",
      *rank_capacity_factor);
  MG_CHECK(!rank_capacity_factor || training.capacity_factor <= 0,
           "--moe-expert-rank-capacity-factor {} with --moe-expert-capacity-factor {}: the latter "
           "already bounds what the experts of a rank take, each by so many times the mean; leave "
           "one of them out",
           *rank_capacity_factor, training.capacity_factor);
  set_balancing(training);
  return training;
}

void MoeFlags::set_balancing(nn::RouterTraining& training) const {
  MG_CHECK(aux_loss_coeff.size() == load_balancing_type.size() || aux_loss_coeff.size() == 1,
           "--moe-aux-loss-coeff has {} values and --moe-router-load-balancing-type {}; give one "
           "for each",
           aux_loss_coeff.size(), load_balancing_type.size());
  for (size_t i = 0; i < load_balancing_type.size(); ++i) {
    const std::string& type = load_balancing_type[i];
    MG_CHECK(std::ranges::count(load_balancing_type, type) == 1,
             "--moe-router-load-balancing-type names {} more than once; leave out all but one",
             type);
    const double value = coefficient(aux_loss_coeff[aux_loss_coeff.size() == 1 ? 0 : i]);
    if (type == "aux_loss") {
      training.aux_loss = value;
    } else if (type == "seq_aux_loss") {
      training.sequence_aux_loss = value;
    } else if (type == "global_aux_loss") {
      training.global_aux_loss = value;
    } else {
      training.sinkhorn |= type == "sinkhorn";
      training.quantile |= type == "quantile_balancing";
      MG_CHECK(type == "none" || training.sinkhorn || training.quantile,
               "--moe-router-load-balancing-type {} is not supported; use aux_loss, seq_aux_loss, "
               "global_aux_loss, sinkhorn, quantile_balancing or none",
               type);
      MG_CHECK(value == 0 || (type == "none" && load_balancing_type.size() > 1),
               "--moe-aux-loss-coeff is {} with --moe-router-load-balancing-type {}; leave one "
               "of them out",
               value, type);
      MG_CHECK(type == "none" || load_balancing_type.size() == 1,
               "--moe-router-load-balancing-type {} cannot be combined with others; give it alone",
               type);
    }
  }
}

}  // namespace megatron::models
