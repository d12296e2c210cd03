#include "post_training/preference_loss.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "post_training/logistic.h"

namespace megatron::post_training {
namespace {

using Kind = settings::PreferenceKind;
using Row = settings::PreferenceKindRow;
using settings::Divergence, settings::PreferenceSettings;

// A function of one number at a point.
struct Curve {
  double value = 0, slope = 0;
};

// -log sigmoid(c x)
Curve log_loss(double c, double x) { return {softplus(-c * x), -c * sigmoid(-c * x)}; }
// sigmoid(c x)
Curve logistic(double c, double x) {
  const double p = sigmoid(c * x);
  return {p, c * p * (1 - p)};
}
Curve squared(double x) { return {x * x, 2 * x}; }
Curve sum(double a, Curve f, double b, Curve g) {
  return {a * f.value + b * g.value, a * f.slope + b * g.slope};
}
Curve smoothed(double e, double c, double x) {
  return sum(1 - e, log_loss(c, x), e, log_loss(-c, x));
}
Curve hinge(double beta, double x) { return beta * x < 1 ? Curve{1 - beta * x, -beta} : Curve{}; }

Curve exo(double e, double beta, double x) {
  const double z = beta * x, p = sigmoid(z), q = sigmoid(-z);
  return {p * (-softplus(-z) - std::log(1 - e)) + q * (-softplus(z) - std::log(e)),
          beta * p * q * (z - std::log1p(-e) + std::log(e))};
}

// e^-z m is one exponential, so that it stays finite where e^-z alone does not.
Curve discopop(double tau, double beta, double x) {
  const double z = beta * x, m = sigmoid(z / tau), rest = sigmoid(-z / tau),
               exponential = std::exp(-z - softplus(-z / tau));
  return {
      softplus(-z) * rest + exponential,
      beta * (-sigmoid(-z) * rest - exponential + (exponential - softplus(-z) * m) * rest / tau)};
}

Curve divergence(const PreferenceSettings& s, double r) {
  const double a = s.alpha_divergence - 1;
  switch (s.divergence) {
    case Divergence::reverse_kl: return {r, 1};
    case Divergence::forward_kl: return {-std::expm1(-r), std::exp(-r)};
    case Divergence::js: return {std::numbers::ln2 - softplus(-r), sigmoid(-r)};
    case Divergence::alpha: return {std::expm1(a * r) / a, std::exp(a * r)};
  }
  MG_ASSERT(false);
}

// Loss of a pair as a sum of functions of u, of v and of a difference.
struct RatioLoss {
  Curve chosen = {}, rejected = {}, margin = {};
  // Derivatives of the difference with respect to u and -v.
  double chosen_factor = 1, rejected_factor = 1;
};

Curve of_margin(const PreferenceSettings& s, Kind kind, double d) {
  const double b = s.beta, e = s.label_smoothing;
  switch (kind) {
    case Kind::sigmoid:
    case Kind::sigmoid_norm: return log_loss(b, d);
    case Kind::conservative: return smoothed(e, b, d);
    case Kind::robust:
      return sum((1 - e) / (1 - 2 * e), log_loss(b, d), -e / (1 - 2 * e), log_loss(-b, d));
    case Kind::hinge: return hinge(b, d);
    case Kind::ipo:
    case Kind::ipo_sum: return squared(d - 1 / (2 * b));
    case Kind::exo_pair: return exo(e, b, d);
    case Kind::discopop: return discopop(s.discopop_tau, b, d);
    default: MG_ASSERT(false);
  }
}

RatioLoss ratio_loss(const PreferenceSettings& s, const Row& row, const CompletionPair& pair) {
  const double b = s.beta, u = pair.chosen.ratio(), v = pair.rejected.ratio();
  switch (row.kind) {
    case Kind::nca_pair:
      return {sum(1, log_loss(b, u), 0.5, log_loss(-b, u)), sum(0.5, log_loss(-b, v), 0, {})};
    case Kind::bco_pair: return {log_loss(b, u), log_loss(-b, v)};
    case Kind::sppo_hard: return {squared(u - 1 / (2 * b)), squared(v + 1 / (2 * b))};
    case Kind::apo_zero: return {logistic(-b, u), logistic(b, v)};
    case Kind::apo_down: return {logistic(b, u), {}, logistic(-b, u - v)};
    default: break;
  }
  const Curve f = divergence(s, u), g = divergence(s, v);
  const double chosen = row.per_token ? 1 / pair.chosen.length : 1,
               rejected = row.per_token ? 1 / pair.rejected.length : 1;
  return {{},
          {},
          of_margin(s, row.kind, f.value * chosen - g.value * rejected),
          f.slope * chosen,
          g.slope * rejected};
}

// Order of the pairs by a number.
template <class Number>
std::vector<size_t> sorted(std::span<const CompletionPair> pairs, const Number& number) {
  std::vector<size_t> order(pairs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return number(pairs[i]); });
  return order;
}

double sorted_loss(const PreferenceSettings& s, bool paired, double weight,
                   std::span<const CompletionPair> pairs, std::span<PairSlope> slopes) {
  using P = CompletionPair;
  const auto upper = [&](const P& p) {
    return paired ? p.chosen.weighted - p.rejected.weighted : p.chosen.ratio();
  };
  const auto lower = [&](const P& p) {
    return paired ? p.chosen.weighted_reference - p.rejected.weighted_reference
                  : p.rejected.ratio();
  };
  const std::vector<size_t> above = sorted(pairs, upper), below = sorted(pairs, lower);
  double loss = 0;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const Curve curve =
        smoothed(s.label_smoothing, s.beta, upper(pairs[above[i]]) - lower(pairs[below[i]]));
    loss += weight * curve.value;
    slopes[above[i]].chosen.weighted += weight * curve.slope;
    slopes[paired ? above[i] : below[i]].rejected.weighted -= weight * curve.slope;
  }
  return loss;
}

// Number of pairs times the mean loss of the tokens of chosen completions, and of their prompts.
double token_loss(double weight, bool prompts, std::span<const CompletionPair> pairs,
                  std::span<PairSlope> slopes) {
  double log_p = 0, tokens = 0;
  for (const auto& [chosen, rejected] : pairs) {
    log_p += chosen.log_p + (prompts ? chosen.prompt_log_p : 0);
    tokens += chosen.length + (prompts ? chosen.prompt_length : 0);
  }
  if (tokens == 0) return 0;
  const double factor = -weight / tokens;
  for (PairSlope& slope : slopes) {
    slope.chosen.log_p += factor * static_cast<double>(pairs.size());
    if (prompts) slope.chosen.prompt += factor * static_cast<double>(pairs.size());
  }
  return factor * log_p * static_cast<double>(pairs.size());
}

// l - log(1 - e^l) of a mean log-probability l. The odds of a certain text, l = 0, are infinite: l
// is kept below that.
Curve log_odds(double mean) {
  const double l = std::min(mean, -1e-12);
  return {l - std::log(-std::expm1(l)), -1 / std::expm1(l)};
}

// What takes the place of a completion's log-probability, and its derivative.
Curve free_score(const PreferenceSettings& s, const Row& row, const Completion& completion) {
  const double factor = row.per_token ? 1 / completion.length : 1, l = completion.log_p * factor;
  if (row.kind == Kind::orpo) {
    const Curve odds = log_odds(l);
    return {odds.value, odds.slope * factor};
  }
  if (s.alphapo_alpha == 0) return {l, factor};
  return {-std::expm1(-s.alphapo_alpha * l) / s.alphapo_alpha,
          std::exp(-s.alphapo_alpha * l) * factor};
}

Curve free_margin(const PreferenceSettings& s, Kind kind, double d) {
  const double b = s.beta;
  switch (kind) {
    case Kind::orpo: {
      const Curve odds = log_loss(1, d);
      return {b * odds.value, b * odds.slope};
    }
    case Kind::cpo: return smoothed(s.label_smoothing, b, d);
    case Kind::cpo_hinge: return hinge(b, d);
    case Kind::cpo_ipo: return squared(d - 1 / (2 * b));
    case Kind::simpo: return smoothed(s.label_smoothing, b, d - s.simpo_gamma / b);
    default: MG_ASSERT(false);
  }
}

double free_loss(const PreferenceSettings& s, const Row& row, double weight,
                 std::span<const CompletionPair> pairs, std::span<PairSlope> slopes) {
  double loss = token_loss(weight * s.nll_weight(row.kind), row.kind == Kind::orpo, pairs, slopes);
  for (size_t i = 0; i < pairs.size(); ++i) {
    const Curve chosen = free_score(s, row, pairs[i].chosen),
                rejected = free_score(s, row, pairs[i].rejected),
                margin = free_margin(s, row.kind, chosen.value - rejected.value);
    loss += weight * margin.value;
    slopes[i].chosen.log_p += weight * margin.slope * chosen.slope;
    slopes[i].rejected.log_p -= weight * margin.slope * rejected.slope;
  }
  return loss;
}

double sum_of_ratio_losses(const PreferenceSettings& s, const Row& row, double weight,
                           std::span<const CompletionPair> pairs, std::span<PairSlope> slopes) {
  double loss = 0;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const RatioLoss of = ratio_loss(s, row, pairs[i]);
    const double share =
        weight * (s.use_weighting ? pairs[i].chosen.confidence * pairs[i].rejected.confidence : 1);
    loss += share * (of.chosen.value + of.rejected.value + of.margin.value);
    slopes[i].chosen.weighted += share * (of.chosen.slope + of.margin.slope * of.chosen_factor);
    slopes[i].rejected.weighted +=
        share * (of.rejected.slope - of.margin.slope * of.rejected_factor);
  }
  return loss;
}

}  // namespace

double preference_loss(const PreferenceSettings& settings, std::span<const CompletionPair> pairs,
                       std::span<PairSlope> slopes) {
  MG_ASSERT(slopes.size() == pairs.size());
  double loss = 0;
  for (const auto& [row, weight] : settings.terms()) {
    const Kind kind = row->kind;
    if (row->family == Row::Family::free) loss += free_loss(settings, *row, weight, pairs, slopes);
    else if (kind == Kind::sft) loss += token_loss(weight, false, pairs, slopes);
    else if (kind == Kind::aot || kind == Kind::aot_unpaired)
      loss += sorted_loss(settings, kind == Kind::aot, weight, pairs, slopes);
    else loss += sum_of_ratio_losses(settings, *row, weight, pairs, slopes);
  }
  return loss;
}

double unpaired_loss(const PreferenceSettings& settings,
                     std::span<const LabelledCompletion> completions, double kl,
                     std::span<CompletionSlope> slopes) {
  MG_ASSERT(slopes.size() == completions.size());
  double loss = 0;
  for (const auto& [row, weight] : settings.terms()) {
    const double from = row->kind == Kind::kto ? kl : 0;
    for (size_t i = 0; i < completions.size(); ++i) {
      const auto& [completion, desirable] = completions[i];
      const double share =
          weight * (desirable ? settings.desirable_weight : settings.undesirable_weight);
      const Curve curve =
          logistic(desirable ? -settings.beta : settings.beta, completion.ratio() - from);
      loss += share * curve.value;
      slopes[i].weighted += share * curve.slope;
    }
  }
  return loss;
}

}  // namespace megatron::post_training
