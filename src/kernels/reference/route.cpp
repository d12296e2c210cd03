#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"

namespace megatron::kernels::reference {
namespace {

constexpr double kMinSum = 1e-20;

template <class C>
C log_sum_exp(std::span<const C> x) {
  const C most = *std::ranges::max_element(x);
  C sum = 0;
  for (const C value : x) sum += std::exp(value - most);
  return most + std::log(sum);
}

template <class C>
std::vector<C> softmax(std::span<const C> x) {
  const C log_sum = log_sum_exp(x);
  std::vector<C> p;
  for (const C value : x) p.push_back(std::exp(value - log_sum));
  return p;
}

template <class C>
C sigmoid(C x) {
  return 1 / (1 + std::exp(-x));
}
template <class C>
C softplus(C x) {
  return std::max<C>(x, 0) + std::log1p(std::exp(-std::abs(x)));
}

// Score of a single logit, and its derivative.
template <class C>
C score(RouterScore kind, C x) {
  return kind == RouterScore::sigmoid ? sigmoid(x) : std::sqrt(softplus(x));
}
template <class C>
C slope(RouterScore kind, C x) {
  if (kind == RouterScore::sigmoid) return sigmoid(x) * (1 - sigmoid(x));
  return sigmoid(x) / (2 * std::sqrt(softplus(x)));
}

// Indices of the k highest values, in descending order; lower indices first among equal values.
template <class C>
std::vector<int64_t> highest(std::span<const C> values, int64_t k) {
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  const auto rank = [&](int64_t i) {
    const C value = values[static_cast<size_t>(i)];
    return std::isnan(value) ? -std::numeric_limits<C>::infinity() : value;
  };
  std::ranges::stable_sort(order, [&](int64_t a, int64_t b) { return rank(a) > rank(b); });
  order.resize(static_cast<size_t>(k));
  return order;
}

// Sets the values of experts outside the chosen groups to -infinity.
template <class C>
void limit_groups(const RouterForm& form, std::vector<C>& values) {
  if (form.chosen_groups == form.groups) return;
  const size_t size = values.size() / static_cast<size_t>(form.groups);
  std::vector<C> worth;
  for (int64_t g = 0; g < form.groups; ++g) {
    const auto group = std::span<const C>(values).subspan(static_cast<size_t>(g) * size, size);
    C sum = 0;
    for (const int64_t i : highest(group, form.group_best)) sum += group[static_cast<size_t>(i)];
    worth.push_back(sum);
  }
  std::vector<bool> chosen(static_cast<size_t>(form.groups));
  for (const int64_t g : highest<C>(worth, form.chosen_groups))
    chosen[static_cast<size_t>(g)] = true;
  for (size_t e = 0; e < values.size(); ++e)
    if (!chosen[e / size]) values[e] = -std::numeric_limits<C>::infinity();
}

template <class C>
std::vector<C> all_scores(const RouterForm& form, std::span<const C> logits) {
  if (form.score == RouterScore::softmax)
    return form.softmax_first ? softmax(logits) : std::vector<C>(logits.begin(), logits.end());
  std::vector<C> s;
  for (const C x : logits) s.push_back(score(form.score, x));
  return s;
}

template <class C>
void route_typed(const RouteArgs& args) {
  const RouterForm& form = args.form;
  const std::vector<C> logits = load<C>(args.logits), bias = load<C>(args.bias),
                       selection = load<C>(args.selection);
  const auto tokens = static_cast<size_t>(args.logits.size(0)),
             experts = static_cast<size_t>(args.logits.size(1));
  const int64_t k = args.experts.size(1);
  std::vector<int64_t> chosen;
  std::vector<C> weights;
  for (size_t t = 0; t < tokens; ++t) {
    const auto row = std::span<const C>(logits).subspan(t * experts, experts);
    const std::vector<C> s = all_scores(form, row);
    std::vector<C> c = s;
    for (size_t e = 0; e < experts; ++e) {
      if (!selection.empty()) c[e] = selection[t * experts + e];
      if (!bias.empty()) c[e] += bias[e];
    }
    limit_groups(form, c);
    std::vector<C> w;
    for (const int64_t e : highest<C>(c, k)) {
      chosen.push_back(e);
      w.push_back(s[static_cast<size_t>(e)]);
    }
    if (form.score == RouterScore::softmax && !form.softmax_first) w = softmax<C>(w);
    C sum = 0;
    for (const C x : w) sum += x;
    for (const C x : w)
      weights.push_back((form.normalised ? x / (sum + static_cast<C>(kMinSum)) : x) *
                        static_cast<C>(form.scale));
  }
  store_integers(args.experts, chosen);
  store(args.weights, weights);
}

// Gradient of w / (sum w + least) with respect to w.
template <class C>
std::vector<C> normalised_gradient(std::span<const C> w, std::span<const C> dout) {
  C sum = static_cast<C>(kMinSum), dot = 0;
  for (const C x : w) sum += x;
  for (size_t j = 0; j < w.size(); ++j) dot += dout[j] * w[j] / sum;
  std::vector<C> dw;
  for (size_t j = 0; j < w.size(); ++j) dw.push_back((dout[j] - dot) / sum);
  return dw;
}

template <class C>
std::vector<C> softmax_gradient(std::span<const C> p, std::span<const C> dp) {
  C dot = 0;
  for (size_t e = 0; e < p.size(); ++e) dot += p[e] * dp[e];
  std::vector<C> dx;
  for (size_t e = 0; e < p.size(); ++e) dx.push_back(p[e] * (dp[e] - dot));
  return dx;
}

template <class C>
void route_backward_typed(const RouteBackwardArgs& args) {
  const RouterForm& form = args.form;
  const std::vector<C> logits = load<C>(args.logits), dweights = load<C>(args.dweights);
  const std::vector<int64_t> chosen = load_integers(args.experts);
  const auto tokens = static_cast<size_t>(args.logits.size(0)),
             experts = static_cast<size_t>(args.logits.size(1)),
             k = static_cast<size_t>(args.experts.size(1));
  const bool after = form.score == RouterScore::softmax && !form.softmax_first;
  std::vector<C> dlogits(logits.size());
  for (size_t t = 0; t < tokens; ++t) {
    const auto row = std::span<const C>(logits).subspan(t * experts, experts);
    const std::vector<C> s = all_scores(form, row);
    std::vector<C> w, dw;
    for (size_t j = 0; j < k; ++j) {
      w.push_back(s[static_cast<size_t>(chosen[t * k + j])]);
      dw.push_back(dweights[t * k + j] * static_cast<C>(form.scale));
    }
    if (after) w = softmax<C>(w);
    if (form.normalised) dw = normalised_gradient<C>(w, dw);
    if (after) dw = softmax_gradient<C>(w, dw);
    std::vector<C> ds(experts);
    for (size_t j = 0; j < k; ++j) ds[static_cast<size_t>(chosen[t * k + j])] += dw[j];
    if (form.softmax_first) ds = softmax_gradient<C>(s, ds);
    for (size_t e = 0; e < experts; ++e)
      dlogits[t * experts + e] =
          form.score == RouterScore::softmax ? ds[e] : ds[e] * slope(form.score, row[e]);
  }
  store(args.dlogits, dlogits);
}

// The probabilities of a token's experts as used by the losses.
template <class C>
std::vector<C> probabilities(RouterScore kind, std::span<const C> logits) {
  if (kind == RouterScore::softmax) return softmax(logits);
  std::vector<C> p;
  C sum = static_cast<C>(kMinSum);
  for (const C x : logits) {
    p.push_back(score(kind, x));
    sum += p.back();
  }
  for (C& x : p) x /= sum;
  return p;
}

// Numbers of tokens, of which those below 0 do not count; none: all do.
std::vector<int64_t> numbers_of(const Tensor& counted) {
  return counted.defined() ? load_integers(counted) : std::vector<int64_t>();
}

template <class C>
void sums_typed(const RouterSumsArgs& args) {
  const std::vector<C> logits = load<C>(args.logits);
  const auto tokens = static_cast<size_t>(args.logits.size(0)),
             experts = static_cast<size_t>(args.logits.size(1)),
             segments = static_cast<size_t>(args.counts.size(0));
  std::vector<C> sums(segments * experts), counts(sums.size()), squares(segments),
      entropy(segments);
  const std::vector<int64_t> counted = numbers_of(args.counted);
  for (size_t t = 0; t < tokens; ++t) {
    if (!counted.empty() && counted[t] < 0) continue;
    const auto row = std::span<const C>(logits).subspan(t * experts, experts);
    const std::vector<C> p = probabilities(args.score, row);
    const size_t segment = t / (tokens / segments);
    for (size_t e = 0; e < experts; ++e) {
      sums[segment * experts + e] += p[e];
      if (p[e] > 0) entropy[segment] -= p[e] * std::log(p[e]);
    }
    for (const int64_t e : highest(row, args.k))
      counts[segment * experts + static_cast<size_t>(e)] += 1;
    squares[segment] += log_sum_exp(row) * log_sum_exp(row);
  }
  store(args.sums, sums);
  store(args.counts, counts);
  store(args.squares, squares);
  store(args.entropy, entropy);
}

template <class C>
void loss_backward_typed(const RouterLossBackwardArgs& args) {
  const std::vector<C> logits = load<C>(args.logits), counts = load<C>(args.counts);
  std::vector<C> dlogits = load<C>(args.dlogits);
  const auto tokens = static_cast<size_t>(args.logits.size(0)),
             experts = static_cast<size_t>(args.logits.size(1)),
             segments = static_cast<size_t>(args.counts.size(0));
  const double weight = scalar(args.weight);
  const auto balance = static_cast<C>(weight * args.balance), z = static_cast<C>(weight * args.z);
  const std::vector<int64_t> counted = numbers_of(args.counted);
  for (size_t t = 0; t < tokens; ++t) {
    if (!counted.empty() && counted[t] < 0) continue;
    const auto row = std::span<const C>(logits).subspan(t * experts, experts);
    const size_t segment = t / (tokens / segments);
    const std::vector<C> p = softmax(row);
    std::vector<C> g;
    for (size_t e = 0; e < experts; ++e) g.push_back(balance * counts[segment * experts + e]);
    if (args.score == RouterScore::softmax) {
      g = softmax_gradient<C>(p, g);
    } else {
      std::vector<C> s;
      for (const C x : row) s.push_back(score(args.score, x));
      g = normalised_gradient<C>(s, g);
      for (size_t e = 0; e < experts; ++e) g[e] *= slope(args.score, row[e]);
    }
    for (size_t e = 0; e < experts; ++e)
      dlogits[t * experts + e] += g[e] + 2 * z * log_sum_exp(row) * p[e];
  }
  store(args.dlogits, dlogits);
}

}  // namespace

void route(const RouteArgs& args, Stream&) {
  args.logits.dtype() == DType::f64 ? route_typed<double>(args) : route_typed<float>(args);
}

void route_backward(const RouteBackwardArgs& args, Stream&) {
  args.logits.dtype() == DType::f64 ? route_backward_typed<double>(args)
                                    : route_backward_typed<float>(args);
}

void expert_counts(const ExpertCountsArgs& args, Stream&) {
  const Tensor& out = args.counts.out;
  std::vector<double> counts(static_cast<size_t>(out.size(0)));
  if (args.counts.beta != 0) counts = load<double>(out);
  const std::vector<int64_t> experts = load_integers(args.experts);
  const std::vector<int64_t> rows =
      args.rows.defined() ? load_integers(args.rows) : std::vector<int64_t>();
  for (size_t i = 0; i < experts.size(); ++i)
    if (rows.empty() || rows[i] >= 0) counts[static_cast<size_t>(experts[i])] += 1;
  store(out, counts);
}

void expert_shares(const ExpertSharesArgs& args, Stream&) {
  std::vector<double> shares = load<double>(args.counts);
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share = sum == 0 ? 0 : share / sum;
  store(args.shares, shares);
}

void expert_bias(const ExpertBiasArgs& args, Stream&) {
  const std::vector<double> counts = load<double>(args.counts);
  std::vector<double> bias = load<double>(args.bias);
  const double mean = std::accumulate(counts.begin(), counts.end(), 0.0) /
                      static_cast<double>(std::max<size_t>(1, counts.size()));
  for (size_t e = 0; e < bias.size(); ++e)
    bias[e] += args.rate * ((mean > counts[e] ? 1 : 0) - (mean < counts[e] ? 1 : 0));
  store(args.bias, bias);
}

void router_sums(const RouterSumsArgs& args, Stream&) {
  args.logits.dtype() == DType::f64 ? sums_typed<double>(args) : sums_typed<float>(args);
}

void router_loss_backward(const RouterLossBackwardArgs& args, Stream&) {
  args.logits.dtype() == DType::f64 ? loss_backward_typed<double>(args)
                                    : loss_backward_typed<float>(args);
}

}  // namespace megatron::kernels::reference
