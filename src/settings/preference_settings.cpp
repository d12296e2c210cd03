#include "settings/preference_settings.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/text_parts.h"

namespace megatron::settings {
namespace {

using Kind = PreferenceKind;
using Row = PreferenceKindRow;
using Family = Row::Family;

constexpr std::array kKinds = {
    Row{.name = "sigmoid",
        .kind = Kind::sigmoid,
        .family = Family::ratio,
        .doc = "DPO",
        .divergence = true},
    Row{.name = "conservative",
        .kind = Kind::conservative,
        .family = Family::ratio,
        .doc = "DPO with --label-smoothing",
        .smoothing = true,
        .divergence = true},
    Row{.name = "robust",
        .kind = Kind::robust,
        .family = Family::ratio,
        .doc = "DPO, unbiased if a share --label-smoothing of the labels is swapped",
        .smoothing = true,
        .divergence = true},
    Row{.name = "hinge",
        .kind = Kind::hinge,
        .family = Family::ratio,
        .doc = "SLiC",
        .divergence = true},
    Row{.name = "ipo",
        .kind = Kind::ipo,
        .family = Family::ratio,
        .doc = "IPO, log-ratios per token as in TRL",
        .divergence = true,
        .per_token = true},
    Row{.name = "ipo_sum",
        .kind = Kind::ipo_sum,
        .family = Family::ratio,
        .doc = "IPO, log-ratios of whole completions",
        .divergence = true},
    Row{.name = "sigmoid_norm",
        .kind = Kind::sigmoid_norm,
        .family = Family::ratio,
        .doc = "DPO, log-ratios per token",
        .divergence = true,
        .per_token = true},
    Row{.name = "exo_pair",
        .kind = Kind::exo_pair,
        .family = Family::ratio,
        .doc = "EXO",
        .smoothing = true,
        .divergence = true},
    Row{.name = "nca_pair", .kind = Kind::nca_pair, .family = Family::ratio, .doc = "NCA"},
    Row{.name = "bco_pair",
        .kind = Kind::bco_pair,
        .family = Family::ratio,
        .doc = "BCO without its shift"},
    Row{.name = "sppo_hard", .kind = Kind::sppo_hard, .family = Family::ratio, .doc = "SPPO"},
    Row{.name = "apo_zero",
        .kind = Kind::apo_zero,
        .family = Family::ratio,
        .doc = "APO, raises chosen completions"},
    Row{.name = "apo_down",
        .kind = Kind::apo_down,
        .family = Family::ratio,
        .doc = "APO, lowers both"},
    Row{.name = "discopop",
        .kind = Kind::discopop,
        .family = Family::ratio,
        .doc = "DiscoPOP",
        .divergence = true},
    Row{.name = "aot",
        .kind = Kind::aot,
        .family = Family::ratio,
        .doc = "AOT, of the sorted margins of a micro-batch",
        .smoothing = true,
        .couples = true},
    Row{.name = "aot_unpaired",
        .kind = Kind::aot_unpaired,
        .family = Family::ratio,
        .doc = "AOT, of the sorted log-ratios of a micro-batch",
        .smoothing = true,
        .couples = true},
    Row{.name = "sft",
        .kind = Kind::sft,
        .family = Family::ratio,
        .doc = "mean loss of the tokens of a micro-batch's chosen completions; with sigmoid: RPO",
        .couples = true},
    Row{.name = "kto",
        .kind = Kind::kto,
        .family = Family::unpaired,
        .doc = "KTO, with the KL estimate of a micro-batch",
        .couples = true},
    Row{.name = "apo_zero_unpaired",
        .kind = Kind::apo_zero_unpaired,
        .family = Family::unpaired,
        .doc = "APO of completions"},
    Row{.name = "orpo",
        .kind = Kind::orpo,
        .family = Family::free,
        .doc = "ORPO; its loss of chosen texts is a mean over a micro-batch's tokens",
        .per_token = true,
        .couples = true},
    Row{.name = "cpo", .kind = Kind::cpo, .family = Family::free, .doc = "CPO", .smoothing = true},
    Row{.name = "cpo_hinge",
        .kind = Kind::cpo_hinge,
        .family = Family::free,
        .doc = "CPO with the loss of SLiC"},
    Row{.name = "cpo_ipo",
        .kind = Kind::cpo_ipo,
        .family = Family::free,
        .doc = "CPO with the loss of IPO",
        .per_token = true},
    Row{.name = "simpo",
        .kind = Kind::simpo,
        .family = Family::free,
        .doc = "SimPO",
        .smoothing = true,
        .per_token = true},
};

const Row* row_named(std::string_view name) {
  const auto found = std::ranges::find(kKinds, name, &Row::name);
  return found == kKinds.end() ? nullptr : &*found;
}

std::string kinds_text() {
  std::vector<std::string> kinds;
  for (const Row& row : kKinds) kinds.push_back(fmt::format("{} ({})", row.name, row.doc));
  return fmt::format("{}", fmt::join(kinds, ", "));
}

std::string smoothed_kinds() {
  std::vector<std::string_view> names;
  for (const Row& row : kKinds)
    if (row.smoothing) names.push_back(row.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

void check_number(std::string_view flag, double value, bool valid, std::string_view limit) {
  MG_CHECK(std::isfinite(value) && valid, "--{} is {}; it must be {}", flag, value, limit);
}

}  // namespace

std::span<const PreferenceKindRow> preference_kinds() { return kKinds; }

void PreferenceSettings::fields(Fields& f) {
  // Reason why a flag does nothing: no kind of the loss reads it.
  const auto read_if = [this](auto reads) {
    return [this, reads]() -> std::string {
      for (const std::string& name : loss)
        if (const Row* row = row_named(name); row == nullptr || reads(*row)) return "";
      return fmt::format("--preference-loss is {}", fmt::join(loss, " "));
    };
  };
  const auto read_by = [&](auto... kinds) {
    return read_if([=](const Row& row) { return ((row.kind == kinds) || ...); });
  };
  const auto family = [&](Family wanted) {
    return read_if([=](const Row& row) { return row.family == wanted; });
  };
  f.add("preference-loss", &loss,
        "kinds of loss, added up with --preference-loss-weights: " + kinds_text() +
            ". A loss of a micro-batch depends on --micro-batch-size");
  f.add("preference-loss-weights", &weights, "weight of each kind of --preference-loss; default 1");
  f.add("beta", &beta,
        "scale of log-ratios, or of log-probabilities in losses without a reference model; in "
        "orpo the weight of the log-odds term");
  f.add("label-smoothing", &label_smoothing,
        "assumed share of pairs whose chosen and rejected completions are swapped, in the losses " +
            smoothed_kinds())
      .of(read_if([](const Row& row) { return row.smoothing; }));
  f.add("ld-alpha", &ld_alpha,
        "LD-DPO: weight of the tokens of a completion beyond the length of the pair's shorter one")
      .of(family(Family::ratio));
  f.add_enum<Divergence>("f-divergence-type", &divergence,
                         {{"reverse_kl", Divergence::reverse_kl},
                          {"forward_kl", Divergence::forward_kl},
                          {"js_divergence", Divergence::js},
                          {"alpha_divergence", Divergence::alpha}},
                         "f-DPO: divergence from the reference model; its derivative replaces the "
                         "log-ratios in losses of their differences")
      .of(read_if([](const Row& row) { return row.divergence; }));
  f.add("f-alpha-divergence-coef", &alpha_divergence,
        "alpha of --f-divergence-type "
        "alpha_divergence")
      .of([this] {
        return divergence == Divergence::alpha ? "" : "--f-divergence-type is not alpha_divergence";
      });
  f.add_switch("reference-free", &reference_free, true,
               "without a reference model: log-probabilities take the place of log-ratios")
      .of(family(Family::ratio));
  f.add_switch(
      "use-weighting", &use_weighting, true,
      "WPO: weight the loss of each pair by how probable both completions are under the trained "
      "model: the product of their geometric means over tokens of p / sum p^2; no gradient flows "
      "through the weight");
  f.add("discopop-tau", &discopop_tau, "discopop: temperature of the mixture of its two losses")
      .of(read_by(Kind::discopop));
  f.add("desirable-weight", &desirable_weight,
        "kto and apo_zero_unpaired: weight of desirable completions")
      .of(family(Family::unpaired));
  f.add("undesirable-weight", &undesirable_weight,
        "kto and apo_zero_unpaired: weight of undesirable completions")
      .of(family(Family::unpaired));
  f.add("simpo-gamma", &simpo_gamma, "simpo: margin that is subtracted from the scaled difference")
      .of(read_by(Kind::simpo));
  const auto cpo = read_by(Kind::cpo, Kind::cpo_hinge, Kind::cpo_ipo, Kind::simpo);
  f.add("cpo-alpha", &cpo_alpha,
        "cpo, cpo_hinge, cpo_ipo, simpo: weight of the mean loss of the tokens of a micro-batch's "
        "chosen completions; default 1, of simpo 0")
      .of(cpo);
  f.add("alphapo-alpha", &alphapo_alpha,
        "AlphaPO: a log-probability log p becomes (1 - p^-alpha) / alpha in cpo, cpo_hinge, "
        "cpo_ipo and simpo; 0: unchanged")
      .of(cpo);
}

void PreferenceSettings::check() const {
  MG_CHECK(!loss.empty(), "--preference-loss names no kind of loss; give sigmoid, for example");
  std::vector<std::string> names;
  for (const Row& row : kKinds) names.emplace_back(row.name);
  for (const std::string& name : loss) {
    if (row_named(name) != nullptr) continue;
    const std::string near = nearest(name, names);
    fail("--preference-loss {} is no kind of loss{}; the kinds are {}", name,
         near.empty() ? "" : fmt::format(" (is it {}?)", near), fmt::join(names, ", "));
  }
  const auto paired = std::ranges::find_if(
      loss, [](const std::string& name) { return row_named(name)->family != Family::unpaired; });
  MG_CHECK(!unpaired() || paired == loss.end(),
           "--preference-loss {} mixes kinds of pairs and of single completions; give kto and "
           "apo_zero_unpaired without {}",
           fmt::join(loss, " "), *paired);
  MG_CHECK(weights.empty() || weights.size() == loss.size(),
           "--preference-loss-weights has {} numbers for the {} kinds of --preference-loss; give "
           "one for each",
           weights.size(), loss.size());
  for (const std::string& weight : weights) {
    const auto value = parse_number<double>(weight);
    MG_CHECK(value && std::isfinite(*value) && *value >= 0,
             "--preference-loss-weights has {}; each must be a number from 0 on", weight);
  }
  check_number("beta", beta, beta > 0, "above 0");
  check_number("label-smoothing", label_smoothing, label_smoothing >= 0 && label_smoothing < 0.5,
               "from 0 to below 0.5");
  MG_CHECK(label_smoothing > 0 || !any(&Row::kind, Kind::exo_pair),
           "--label-smoothing is 0; --preference-loss exo_pair takes its logarithm, so give one "
           "above 0, such as 0.001");
  if (ld_alpha) check_number("ld-alpha", *ld_alpha, *ld_alpha >= 0 && *ld_alpha <= 1, "in [0, 1]");
  check_number("f-alpha-divergence-coef", alpha_divergence, alpha_divergence != 1,
               "another number than 1; the limit at 1 is --f-divergence-type reverse_kl");
  check_number("discopop-tau", discopop_tau, discopop_tau > 0, "above 0");
  check_number("desirable-weight", desirable_weight, desirable_weight >= 0, "a number from 0 on");
  check_number("undesirable-weight", undesirable_weight, undesirable_weight >= 0,
               "a number from 0 on");
  check_number("simpo-gamma", simpo_gamma, true, "a number");
  if (cpo_alpha) check_number("cpo-alpha", *cpo_alpha, *cpo_alpha >= 0, "a number from 0 on");
  check_number("alphapo-alpha", alphapo_alpha, true, "a number");
  for (const Term& term : terms())
    MG_CHECK(!use_weighting || (term.row->family == Family::ratio && !term.row->couples),
             "--use-weighting weighs pairs whose log-probabilities are compared with a reference "
             "model's, but --preference-loss {} is {}: leave one of them out",
             term.row->name,
             term.row->family == Family::unpaired ? "of single completions"
             : term.row->family == Family::free   ? "without a reference model"
                                                  : "no sum over pairs");
}

std::vector<PreferenceSettings::Term> PreferenceSettings::terms() const {
  std::vector<Term> terms;
  for (size_t i = 0; i < loss.size(); ++i)
    terms.push_back({row_named(loss[i]), weights.empty() ? 1 : *parse_number<double>(weights[i])});
  return terms;
}

double PreferenceSettings::nll_weight(Kind kind) const {
  switch (kind) {
    case Kind::orpo: return 1;
    case Kind::simpo: return cpo_alpha.value_or(0);
    case Kind::cpo:
    case Kind::cpo_hinge:
    case Kind::cpo_ipo: return cpo_alpha.value_or(1);
    default: return 0;
  }
}

bool PreferenceSettings::couples() const {
  return std::ranges::any_of(terms(), [this](const Term& term) {
    return term.row->couples || nll_weight(term.row->kind) > 0;
  });
}

}  // namespace megatron::settings
