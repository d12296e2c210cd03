// The loss of preference tuning: which kinds, and their constants.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"

namespace megatron::settings {

enum class PreferenceKind {
  sigmoid,
  conservative,
  robust,
  hinge,
  ipo,
  ipo_sum,
  sigmoid_norm,
  exo_pair,
  nca_pair,
  bco_pair,
  sppo_hard,
  apo_zero,
  apo_down,
  discopop,
  aot,
  aot_unpaired,
  sft,
  kto,
  apo_zero_unpaired,
  orpo,
  cpo,
  cpo_hinge,
  cpo_ipo,
  simpo
};

// One kind of loss; post_training/preference_loss.h has the formulas.
struct PreferenceKindRow {
  enum class Family {
    ratio,     // of pairs, from log-ratios to a reference model
    unpaired,  // of single completions that are desirable or not, from log-ratios
    free       // of pairs, without a reference model
  };
  std::string_view name;  // as in TRL where TRL has it
  PreferenceKind kind;
  Family family;
  std::string_view doc;
  bool smoothing = false;   // reads label_smoothing
  bool divergence = false;  // reads `divergence`
  bool per_token = false;   // reads means over a completion's tokens instead of sums
  bool couples = false;     // is not a sum over the pairs (or completions) of a micro-batch
};
std::span<const PreferenceKindRow> preference_kinds();

// What takes the place of a log-ratio r in losses of differences: the derivative of the function of
// an f-divergence (Wang et al. 2023, Beyond reverse KL), without its constants.
enum class Divergence {
  reverse_kl,  // r
  forward_kl,  // 1 - e^-r
  js,          // log 2 + log sigmoid(r)
  alpha        // (e^((a - 1) r) - 1) / (a - 1)
};

struct PreferenceSettings {
  using Family = PreferenceKindRow::Family;

  std::vector<std::string> loss = {"sigmoid"};  // names of kinds
  std::vector<std::string> weights;             // one number per kind; none: 1 each
  double beta = 0.1;
  double label_smoothing = 0;
  std::optional<double> ld_alpha;
  Divergence divergence = Divergence::reverse_kl;
  double alpha_divergence = 0.5;
  bool reference_free = false;
  bool use_weighting = false;  // weighs pairs as WPO does (Zhou et al. 2024)
  double discopop_tau = 0.05;
  double desirable_weight = 1, undesirable_weight = 1;
  double simpo_gamma = 0.5;
  std::optional<double> cpo_alpha;  // default: 1 for cpo, cpo_hinge and cpo_ipo, 0 for simpo
  double alphapo_alpha = 0;

  void fields(Fields& fields);
  // Throws Error naming the flag, its value and the limit.
  void check() const;

  // The following need settings that check() accepts.
  struct Term {
    const PreferenceKindRow* row;
    double weight;
  };
  std::vector<Term> terms() const;
  // True if examples are single completions with a label.
  bool unpaired() const { return any(&PreferenceKindRow::family, Family::unpaired); }
  bool needs_reference() const {
    return unpaired() || (any(&PreferenceKindRow::family, Family::ratio) && !reference_free);
  }
  // True if the prompts before chosen completions have a loss.
  bool reads_prompts() const { return any(&PreferenceKindRow::kind, PreferenceKind::orpo); }
  // True if each completion has another example's completion with it.
  bool reads_mismatched() const { return any(&PreferenceKindRow::kind, PreferenceKind::kto); }
  // True if the loss of a micro-batch is not a sum over its pairs, so that other micro-batches give
  // another loss.
  bool couples() const;
  double nll_weight(PreferenceKind kind) const;  // cpo_alpha with its default

 private:
  // True if a kind of the loss has this value. Unknown names have none.
  template <class T>
  bool any(T PreferenceKindRow::* member, T value) const {
    for (const std::string& name : loss)
      for (const PreferenceKindRow& row : preference_kinds())
        if (row.name == name && row.*member == value) return true;
    return false;
  }
};

}  // namespace megatron::settings
