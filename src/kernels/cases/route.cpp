#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/philox.h"
#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

// Spacing of logits. Rounding must not decide which experts are chosen, since back-ends round
// differently.
enum class Spacing {
  apart,  // a token's logits are 6 / E apart, give or take a quarter of that
  ties,   // integers, many of them equal
  nans,   // like apart, but every fifth is a NaN
};

struct Routing {
  int64_t tokens = 1, experts = 4, k = 1;
  RouterForm form = {};
  bool bias = false, selection = false;
  Spacing spacing = Spacing::apart;
  bool real = false;
  DType type = DType::f32;

  std::string str() const {
    constexpr const char* kScores[] = {"softmax", "sigmoid", "sqrt_softplus"};
    std::string text = fmt::format("t={} e={} k={} {} {}", tokens, experts, k,
                                   kScores[static_cast<size_t>(form.score)], name(type));
    if (form.groups > 1)
      text +=
          fmt::format(" groups={}/{}, best {}", form.chosen_groups, form.groups, form.group_best);
    for (const auto& [set, word] : {std::pair{form.softmax_first, " first"},
                                    {form.normalised, " normalised"},
                                    {form.scale != 1, " scaled"},
                                    {bias, " bias"},
                                    {selection, " selection"},
                                    {spacing == Spacing::ties, " ties"},
                                    {spacing == Spacing::nans, " nans"}}) {
      if (set) text += word;
    }
    return text;
  }
};

std::vector<double> row_of_logits(const RandomStream& stream, int64_t token, int64_t experts,
                                  Spacing spacing) {
  const auto bits = [&](int64_t e) {
    return stream.bits(static_cast<uint64_t>(token * experts + e));
  };
  std::vector<double> row(static_cast<size_t>(experts));
  if (spacing == Spacing::ties) {
    for (int64_t e = 0; e < experts; ++e)
      row[static_cast<size_t>(e)] = static_cast<double>(bits(e) % 5);
    return row;
  }
  std::vector<int64_t> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, bits);
  const double step = 6 / static_cast<double>(experts);
  for (size_t rank = 0; rank < row.size(); ++rank) {
    const int64_t e = order[rank];
    const double noise = static_cast<double>(bits(e) & 0xffff) * 0x1p-18;
    row[static_cast<size_t>(e)] = (static_cast<double>(rank) + noise) * step - 3;
  }
  if (spacing == Spacing::nans)
    for (size_t e = static_cast<size_t>(token % 5); e < row.size(); e += 5)
      row[e] = std::numeric_limits<double>::quiet_NaN();
  return row;
}

Tensor router_logits(Inputs& inputs, const char* name, const Routing& r) {
  const RandomStream stream(20261124, name);
  std::vector<double> values;
  for (int64_t t = 0; inputs.has_data() && t < r.tokens; ++t) {
    const std::vector<double> row = row_of_logits(stream, t, r.experts, r.spacing);
    values.insert(values.end(), row.begin(), row.end());
  }
  return inputs.values(name, {r.tokens, r.experts}, r.type, values);
}

// The bias has steps larger than the range of a token's scores, so that no two sums are close.
Tensor bias_of(Inputs& inputs, const Routing& r) {
  const bool plain = r.form.score == RouterScore::softmax && !r.form.softmax_first;
  std::vector<double> values;
  for (int64_t e = 0; e < r.experts; ++e)
    values.push_back(static_cast<double>(e % 3 - 1) * (plain || r.selection ? 8 : 2));
  return inputs.values("bias", {r.experts}, r.type, values);
}

RouteArgs route_args(Inputs& inputs, const Routing& r) {
  RouteArgs args{.form = r.form, .logits = router_logits(inputs, "logits", r)};
  if (r.bias) args.bias = bias_of(inputs, r);
  if (r.selection) args.selection = router_logits(inputs, "selection", r);
  args.experts = inputs.output("experts", {r.tokens, r.k}, DType::i32);
  args.weights = inputs.output("weights", {r.tokens, r.k}, r.type);
  return args;
}

// Relative error of a probability: the rounding of its exponent, and that of a sum over the
// experts.
double router_roundings(const Routing& r) { return 16 + std::sqrt(static_cast<double>(r.experts)); }

// The choice comes from the forward.
RouteBackwardArgs route_backward_args(Inputs& inputs, const Routing& r) {
  Inputs forward_inputs(inputs.runtime());
  const RouteArgs f = route_args(forward_inputs, r);
  table(inputs.forward_of(r.real)).route(f, inputs.runtime().stream());
  return {r.form, f.logits, f.experts, inputs.normal("dweights", {r.tokens, r.k}, r.type),
          inputs.output("dlogits", {r.tokens, r.experts}, r.type)};
}

std::vector<RouterForm> router_forms() {
  std::vector<RouterForm> list = {{}, {.scale = 2.5}, {.softmax_first = true}};
  for (const RouterScore score : {RouterScore::sigmoid, RouterScore::sqrt_softplus}) {
    list.push_back({.score = score});
    list.push_back({.score = score, .normalised = true, .scale = 2.5});
  }
  list.push_back({.softmax_first = true, .normalised = true, .scale = 0.5});
  return list;
}

RouterForm with_groups(RouterForm form, int64_t groups, int64_t chosen, int64_t best) {
  form.groups = groups;
  form.chosen_groups = chosen;
  form.group_best = best;
  return form;
}

// DeepSeek-V3's router: sigmoid, 8 groups of experts.
RouterForm deepseek() {
  return with_groups({.score = RouterScore::sigmoid, .normalised = true, .scale = 2.5}, 8, 4, 2);
}

std::vector<Routing> routings() {
  const RouterForm first{.softmax_first = true},
      normalised{.softmax_first = true, .normalised = true};
  std::vector<Routing> list = {
      {},
      {.tokens = 0, .experts = 8, .k = 2},
      {.tokens = 3, .experts = 1, .k = 1},
      {.tokens = 5, .experts = 7, .k = 7, .form = first},
      {.tokens = 19, .experts = 256, .k = 8, .form = deepseek()},
      {.tokens = 19, .experts = 48, .k = 4, .form = with_groups({}, 6, 1, 1), .selection = true},
      {.tokens = 5, .experts = 512, .k = 10, .form = normalised},
  };
  for (const RouterForm& form : router_forms()) {
    const RouterForm in_groups = with_groups(form, 4, 2, 2);
    list.push_back({.tokens = 7, .experts = 13, .k = 3, .form = form});
    list.push_back({.tokens = 33, .experts = 64, .k = 8, .form = form, .bias = true});
    list.push_back({.tokens = 9, .experts = 24, .k = 4, .form = in_groups, .bias = true});
    list.push_back(
        {.tokens = 9, .experts = 20, .k = 2, .form = form, .bias = true, .selection = true});
    list.push_back({.tokens = 70, .experts = 40, .k = 6, .form = form, .spacing = Spacing::ties});
  }
  list = in_types(list, {DType::f32, DType::f64});
  for (const RouterForm& form : {normalised, RouterForm{}, deepseek()})
    list.push_back({.tokens = 4096, .experts = 64, .k = 8, .form = form, .real = true});
  list.push_back({.tokens = 4096, .experts = 8, .k = 2, .real = true});
  return list;
}

struct Losses {
  int64_t tokens = 1, experts = 2, k = 1, segments = 1;
  RouterScore score = RouterScore::softmax;
  Spacing spacing = Spacing::apart;
  bool real = false, counted = false;
  DType type = DType::f32;

  Routing routing() const {
    return {.tokens = tokens,
            .experts = experts,
            .k = k,
            .form = {.score = score},
            .spacing = spacing,
            .type = type};
  }
  std::string str() const {
    return routing().str() + fmt::format(" s={}{}", segments, counted ? " counted" : "");
  }
};

Tensor counted_tokens(Inputs& inputs, const Losses& l) {
  return l.counted ? inputs.integers("counted", {l.tokens}, DType::i32, -1, 2) : Tensor();
}

RouterSumsArgs router_sums_args(Inputs& inputs, const Losses& l) {
  const Shape all{l.segments, l.experts};
  return {l.score,
          l.k,
          router_logits(inputs, "logits", l.routing()),
          counted_tokens(inputs, l),
          inputs.output("sums", all, l.type),
          inputs.output("counts", all, l.type),
          inputs.output("squares", {l.segments}, l.type),
          inputs.output("entropy", {l.segments}, l.type)};
}

// balance and z are chosen so that each term adds about as much as dlogits already holds.
RouterLossBackwardArgs loss_backward_args(Inputs& inputs, const Losses& l) {
  const int64_t choices = std::max<int64_t>(l.tokens / l.segments * l.k, 1);
  const auto experts = static_cast<double>(l.experts);
  RouterLossBackwardArgs args{.score = l.score,
                              .balance = experts * experts / static_cast<double>(choices),
                              .z = experts / 4,
                              .logits = router_logits(inputs, "logits", l.routing())};
  args.counts =
      inputs.integers("counts", {l.segments, l.experts}, l.type, 0, 2 * choices / l.experts + 2);
  args.weight = inputs.scalar("weight", 0.75);
  args.counted = counted_tokens(inputs, l);
  args.dlogits = inputs.updated("dlogits", inputs.normal("dlogits", {l.tokens, l.experts}, l.type));
  return args;
}

std::vector<Losses> losses() {
  const std::vector<Losses> shapes = {
      {},
      {.tokens = 0, .experts = 3, .k = 2, .segments = 2},
      {.tokens = 7, .experts = 13, .k = 3},
      {.tokens = 33, .experts = 24, .k = 2, .segments = 3},
      {.tokens = 44, .experts = 10, .k = 3, .segments = 4, .counted = true},
      {.tokens = 70, .experts = 64, .k = 8, .segments = 2, .spacing = Spacing::ties},
      {.tokens = 300, .experts = 20, .k = 20},
      {.tokens = 5, .experts = 512, .k = 8, .segments = 5},
      {.tokens = 4096, .experts = 64, .k = 8, .real = true},
  };
  std::vector<Losses> list;
  using enum RouterScore;
  for (const RouterScore score : {softmax, sigmoid, sqrt_softplus}) {
    for (Losses l : in_types(shapes, {DType::f32, DType::f64})) {
      l.score = score;
      list.push_back(l);
    }
  }
  list.push_back({.tokens = 4096, .experts = 64, .k = 8, .segments = 4, .real = true});
  return list;
}

struct Counted {
  int64_t tokens = 1, k = 1, experts = 4;
  bool rows = false;
  float beta = 0;
  DType type = DType::f32;

  std::string str() const {
    return fmt::format("t={} k={} e={}{} beta={} {}", tokens, k, experts, rows ? " rows" : "", beta,
                       name(type));
  }
};

ExpertCountsArgs expert_counts_args(Inputs& inputs, const Counted& c) {
  const Shape slots = {c.tokens, c.k};
  ExpertCountsArgs args{.experts = inputs.integers("experts", slots, DType::i32, 0, c.experts),
                        .counts = {.beta = c.beta}};
  if (c.rows) args.rows = inputs.integers("rows", slots, DType::i32, -2, 3);
  args.counts.out =
      c.beta == 0 ? inputs.output("counts", {c.experts}, c.type)
                  : inputs.updated("counts", inputs.integers("counts", {c.experts}, c.type, 0, 9));
  return args;
}

Case shares_case(int64_t experts, bool zeros, DType type) {
  const Named named{fmt::format("e={}{} {}", experts, zeros ? " zeros" : "", name(type)), type};
  return case_of(&Table::expert_shares, named, tolerance(type, 2),
                 [=](Inputs& inputs, const Named&) {
                   return ExpertSharesArgs{
                       .counts = inputs.integers("counts", {experts}, type, 0, zeros ? 1 : 500),
                       .shares = inputs.output("shares", {experts}, type)};
                 });
}

Case bias_case(int64_t experts, DType type) {
  const Named named{fmt::format("e={} {}", experts, name(type)), type};
  return case_of(&Table::expert_bias, named, tolerance(type, 1), [=](Inputs& inputs, const Named&) {
    return ExpertBiasArgs{.rate = 0.25,
                          .counts = inputs.integers("counts", {experts}, type, 0, 5),
                          .bias = inputs.updated("bias", inputs.normal("bias", {experts}, type))};
  });
}

void add_count_cases(std::vector<Case>& cases) {
  const std::vector<Counted> counted = {
      {},
      {.tokens = 0},
      {.tokens = 7, .k = 3, .rows = true},
      {.tokens = 700, .k = 8, .experts = 64, .beta = 1},
  };
  for (const Counted& c : in_types(counted, {DType::f32, DType::f64}))  // whole numbers
    cases.push_back(
        case_of(&Table::expert_counts, c, tolerance(DType::f64, 1), expert_counts_args));
  for (const DType type : {DType::f32, DType::f64}) {
    for (const int64_t experts : {1, 5, 300}) {
      cases.push_back(bias_case(experts, type));
      cases.push_back(shares_case(experts, false, type));
    }
    cases.push_back(shares_case(7, true, type));
  }
}

}  // namespace

void add_route_cases(std::vector<Case>& cases) {
  add_count_cases(cases);
  std::vector<Routing> forward = routings();
  forward.push_back({.tokens = 11,
                     .experts = 24,
                     .k = 5,
                     .form = {.score = RouterScore::sigmoid, .normalised = true},
                     .spacing = Spacing::nans});
  for (const Routing& r : forward)
    cases.push_back(case_of(&Table::route, r, tolerance(r.type, router_roundings(r)), route_args));
  for (const Routing& r : routings()) {
    // With one choice, a token's normalised weight is always 1 and its gradient only a rounding
    // error.
    if (r.form.normalised && r.k == 1) continue;
    // As few as k of a token's E gradients may be nonzero.
    const double zeros = std::sqrt(static_cast<double>(r.experts) / static_cast<double>(r.k));
    cases.push_back(case_of(&Table::route_backward, r,
                            tolerance(r.type, router_roundings(r)) * zeros, route_backward_args));
  }
  for (const Losses& l : losses()) {  // sums of terms of one sign
    const int64_t terms = std::max<int64_t>(l.tokens, 1) * l.experts;
    const double roundings = 16 + std::sqrt(static_cast<double>(terms));
    cases.push_back(
        case_of(&Table::router_sums, l, tolerance(l.type, roundings), router_sums_args));
  }
  for (const Losses& l : losses()) {
    const double bound = 2 * tolerance(l.type, router_roundings(l.routing()));
    cases.push_back(case_of(&Table::router_loss_backward, l, bound, loss_backward_args));
  }
}

}  // namespace megatron::kernels
