// Losses of preferences as functions of the log-probabilities of whole completions, and their
// derivatives.
#pragma once

#include <span>

#include "settings/preference_settings.h"

namespace megatron::post_training {

// Sums over the tokens of a completion y of x = log p, under the trained model and the reference
// model.
struct Completion {
  double length = 0;  // |y|, tokens
  double log_p = 0;
  // With the weights of ld_alpha; without them `weighted` is log_p.
  double weighted = 0, weighted_reference = 0;
  // The prompt before it, if its tokens count.
  double prompt_length = 0, prompt_log_p = 0;
  double confidence = 1;  // WPO: exp of the mean of log p - log sum p^2, constant

  double ratio() const { return weighted - weighted_reference; }
};

// Derivatives of a loss with respect to log_p, weighted and prompt_log_p.
struct CompletionSlope {
  double log_p = 0, weighted = 0, prompt = 0;
};

struct CompletionPair {
  Completion chosen, rejected;
};
struct PairSlope {
  CompletionSlope chosen, rejected;
};

// Returns the weighted sum of the kinds of loss, each summed over the pairs (N times their mean),
// and adds its derivatives to `slopes`. With b = beta, e = label_smoothing, s = log sigmoid, means
// over pairs of, for log-ratios u = log p(y_w) - log p_ref(y_w) of the chosen and v of the rejected
// completion and d = f(u) - f(v), where f is the divergence:
//   sigmoid       -s(b d)                                    Rafailov et al. 2023, DPO
//   conservative  -(1-e) s(b d) - e s(-b d)                  the same, appendix; Mitchell 2023
//   robust        [-(1-e) s(b d) + e s(-b d)] / (1 - 2e)     Chowdhury et al. 2024
//   hinge         max(0, 1 - b d)                            Zhao et al. 2023, SLiC-HF
//   ipo_sum       (d - 1/(2b))^2                             Azar et al. 2023
//   ipo           (f(u)/|y_w| - f(v)/|y_l| - 1/(2b))^2       as TRL has it
//   sigmoid_norm  -s(b (f(u)/|y_w| - f(v)/|y_l|))
//   exo_pair      KL([sigmoid(b d), sigmoid(-b d)] || [1-e, e])              Ji et al. 2024
//   nca_pair      -s(b u) - s(-b u)/2 - s(-b v)/2                            Chen et al. 2024
//   bco_pair      -s(b u) - s(-b v)                                          Jung et al. 2024
//   sppo_hard     (u - 1/(2b))^2 + (v + 1/(2b))^2                            Wu et al. 2024
//   apo_zero      1 - sigmoid(b u) + sigmoid(b v)                  D'Oosterlinck et al. 2024
//   apo_down      sigmoid(b u) + 1 - sigmoid(b (u - v))
//   discopop      -s(b d) (1-m) + e^(-b d) m, m = sigmoid(b d / tau)         Lu et al. 2024
//   aot           conservative, of the differences between the sorted log p(y_w) - log p(y_l) and
//                 the sorted ones of the reference model                  Melnyk et al. 2024
//   aot_unpaired  conservative, of the differences between the sorted u and the sorted v
//   sft           -log p of a token, a mean over all tokens of all chosen completions
// and without a reference model, where l is log p(y), of cpo_ipo and simpo its mean over tokens,
// and with alphapo_alpha a != 0 becomes (1 - e^(-a l)) / a (Gupta et al. 2025):
//   orpo          sft over prompt and completion - b s(o_w - o_l), o = l - log(1 - e^l) of the mean
//                 log-probability l                                       Hong et al. 2024
//   cpo           -(1-e) s(b (l_w - l_l)) - e s(-b (l_w - l_l)) + cpo_alpha sft    Xu et al. 2024
//   cpo_hinge, cpo_ipo  hinge and ipo_sum of l_w - l_l, + cpo_alpha sft
//   simpo         cpo with b (l_w - l_l) - simpo_gamma                    Meng et al. 2024
double preference_loss(const settings::PreferenceSettings& settings,
                       std::span<const CompletionPair> pairs, std::span<PairSlope> slopes);

struct LabelledCompletion {
  Completion completion;
  bool desirable = true;
};

// The same of single completions with log-ratios r: means over completions of
//   kto                w_d sigmoid(-b (r - kl)), of undesirable ones w_u sigmoid(-b (kl - r));
//                      kl is constant                             Ethayarajh et al. 2024
//   apo_zero_unpaired  the same with kl = 0
double unpaired_loss(const settings::PreferenceSettings& settings,
                     std::span<const LabelledCompletion> completions, double kl,
                     std::span<CompletionSlope> slopes);

}  // namespace megatron::post_training
