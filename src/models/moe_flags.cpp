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
        "number of experts in each mixture-of-experts layer, in place of one feed-forward block; "
        "default none")
      .within(1, kMaxFlagSize);
  const auto experts = [this] { return num_experts ? "" : "--num-experts is not given"; };
  f.begin_mode(experts);
  f.add("moe-layer-freq", &layer_freq,
        "which layers use experts: N means every N-th layer; a list has 1 (experts) or 0 (dense) "
        "per layer, \"([0]*1+[1]*26)\"");
  f.add("moe-ffn-hidden-size", &ffn_hidden_size, "width of an expert; default --ffn-hidden-size")
      .within(1, kMaxFlagSize);
  f.add("moe-latent-size", &latent_size,
        "latent width of the experts' inputs and outputs, with a projection from --hidden-size "
        "before the experts and one back after them; the router and the shared expert use "
        "--hidden-size; default none")
      .within(1, kMaxFlagSize);
  f.add("moe-router-topk", &topk, "number of experts that each token is routed to");
  f.add_enum<kernels::RouterScore>(
      "moe-router-score-function", &score,
      {{"softmax", kernels::RouterScore::softmax},
       {"sigmoid", kernels::RouterScore::sigmoid},
       {"sqrtsoftplus", kernels::RouterScore::sqrt_softplus}},
      "function from router logits to expert scores; other than softmax, the scores of a token's "
      "experts are divided by their sum");
  f.add_switch("moe-router-pre-softmax", &pre_softmax, true,
               "softmax over all experts before a token's experts are chosen; by default over the "
               "chosen ones");
  f.add("moe-router-topk-scaling-factor", &topk_scaling_factor,
        "factor that the weights of a token's experts are multiplied by; default 1");
  f.add("moe-router-num-groups", &num_groups,
        "divide the experts into this many equal groups, --moe-router-group-topk of which each "
        "token may use");
  f.add("moe-router-group-topk", &group_topk,
        "number of groups of experts that each token may use");
  f.add_switch("moe-router-enable-expert-bias", &enable_expert_bias, true,
               "balance the experts by a bias on their scores that only affects which experts are "
               "chosen, updated once a step; needs --moe-router-score-function sigmoid or "
               "sqrtsoftplus");
  f.add("moe-router-bias-update-rate", &bias_update_rate,
        "amount by which --moe-router-enable-expert-bias raises or lowers each bias per step")
      .of([this] {
        return enable_expert_bias ? "" : "--moe-router-enable-expert-bias is not given";
      })
      .with_any_model();
  f.add_switch("moe-apply-probs-on-input", &apply_probs_on_input, true,
               "multiply an expert's input by its weight instead of its activations; needs "
               "--moe-router-topk 1");
  f.add("moe-shared-expert-intermediate-size", &shared_ffn,
        "width of a shared expert, which every token passes through; default none");
  f.add_switch("moe-shared-expert-gate", &shared_expert_gate, true,
               "multiply the shared expert's output by a sigmoid gate computed from its input");
  f.begin_mode(experts, true);
  training_fields(f);
  f.begin_mode();
}

void MoeFlags::training_fields(Fields& f) {
  const auto limit = [this] {
    return !capacity_factor        ? "--moe-expert-capacity-factor is not given"
           : *capacity_factor <= 0 ? "--moe-expert-capacity-factor is a limit only if above 0"
                                   : "";
  };
  f.add("moe-router-load-balancing-type", &load_balancing_type,
        "losses that balance the experts' load: aux_loss (over a micro-batch), seq_aux_loss (over "
        "each sequence), global_aux_loss (over the step so far), none; or, not combined with "
        "others, sinkhorn (an even assignment of a micro-batch) or quantile_balancing (a bias from "
        "quantiles of the scores)");
  f.add("moe-aux-loss-coeff", &aux_loss_coeff,
        "coefficient of each loss of --moe-router-load-balancing-type; 0: no loss");
  f.add("moe-router-quantile-balancing-ema", &quantile_ema,
        "share of the bias of quantile_balancing that is kept from step to step (moving average); "
        "0: each step's balanced bias replaces it")
      .of([this] {
        return std::ranges::find(load_balancing_type, "quantile_balancing") ==
                       load_balancing_type.end()
                   ? "--moe-router-load-balancing-type is not quantile_balancing"
                   : "";
      });
  f.add_enum<bool>("moe-router-dtype", &double_logits, {{"fp32", false}, {"fp64", true}},
                   "precision of the matrix products that compute router logits and their "
                   "gradients during training; logits and scores are rounded to fp32");
  f.add("moe-input-jitter-eps", &input_jitter,
        "training: multiply the router's input by random factors that differ from 1 by at most "
        "this; default none");
  f.add_switch(
      "moe-router-force-load-balancing", &force_load_balancing, true,
      "training: use random logits instead of the router's, for an even load in benchmarks");
  f.add(
      "moe-router-force-biased", &force_biased,
      "training: standard deviation of random numbers added to each expert's logits, for an uneven "
      "load in benchmarks: new numbers in each sequence, or always the same ones if negative");
  f.add("moe-z-loss-coeff", &z_loss_coeff,
        "coefficient of the router z-loss, which keeps router logits small; default none");
  f.add("moe-expert-capacity-factor", &capacity_factor,
        "training: max tokens per expert, as a multiple of the mean; tokens above it are dropped; "
        "default no limit");
  f.add_enum<kernels::KeptRows>(
       "moe-token-drop-policy", &drop_policy,
       {{"probs", kernels::KeptRows::largest}, {"position", kernels::KeptRows::first}},
       "which tokens are kept within --moe-expert-capacity-factor: those with the largest weights, "
       "or the first ones")
      .of(limit);
  f.add_switch("moe-pad-expert-input-to-capacity", &pad_to_capacity, true,
               "give every expert as many rows as --moe-expert-capacity-factor allows, so that "
               "shapes are fixed")
      .of(limit);
  f.add_enum<bool>(
       "moe-capacity-scope", &capacity_of_sequence, {{"sequence", true}, {"microbatch", false}},
       "tokens that --moe-expert-capacity-factor refers to: each sequence, so that results do not "
       "depend on the layout, or a rank's micro-batch, as in Megatron-LM")
      .of(limit);
  f.add("moe-expert-rank-capacity-factor", &rank_capacity_factor,
        "training: buffer size for the tokens of a rank's experts, as a multiple of an even load, "
        "1 or more; the run ends at a step that needs more; default enough for any load");
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
  MG_CHECK(
      !rank_capacity_factor || training.capacity_factor <= 0,
      "--moe-expert-rank-capacity-factor {} with --moe-expert-capacity-factor {}: the latter "
      "already limits the tokens of each expert, and so those of a rank; leave one of them out",
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
