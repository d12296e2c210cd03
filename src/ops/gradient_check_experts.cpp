#include "ops/gradient_check_experts.h"

#include "ops/expert_low_rank.h"
#include "ops/expert_rows.h"
#include "ops/router.h"

namespace megatron::ops {
namespace {

using Result = GradientCase::Result;

constexpr int64_t kTokens = 5, kChoices = 2, kExperts = 4;

template <class T>
Tensor made(Tape& tape, DType type, const Shape& shape, const std::vector<T>& values) {
  Tensor t = tape.empty(shape, type, "gradient_check.experts");
  copy_from(t, std::span<const T>(values));
  return t;
}

// Expert 2 has no token. With a capacity of two, each expert has two rows: one row of expert 1 and
// both of expert 2 have no slot, and the last tokens of the other two experts have no row.
ExpertOrder some_order(Tape& tape, int64_t capacity) {
  const int64_t rows = capacity > 0 ? kExperts * capacity : kTokens * kChoices;
  const Shape slots = {kTokens, kChoices};
  ExpertOrder order{.offsets = tape.empty({kExperts + 1}, DType::i32, "gradient_check.offsets"),
                    .slots = tape.empty({rows}, DType::i32, "gradient_check.slots"),
                    .rows = tape.empty(slots, DType::i32, "gradient_check.rows")};
  tape.kernels().expert_rows(
      {.experts = made<int32_t>(tape, DType::i32, slots, {3, 0, 0, 1, 3, 0, 3, 0, 0, 3}),
       .capacity = capacity,
       .padded = capacity > 0,
       .offsets = order.offsets,
       .slots = order.slots,
       .rows = order.rows},
      tape.stream());
  return order;
}

void add_router_cases(std::vector<GradientCase>& cases) {
  add_case(cases, "router_logits", {{5, 3}}, {{4, 3}},
           [](Tape& t, auto x, auto w) { return router_logits(t, x[0], w[0], {}); });
  add_case(cases, "router_logits with bias", {{5, 3}}, {{4, 3}, {4}},
           [](Tape& t, auto x, auto w) { return router_logits(t, x[0], w[0], w[1]); });
  const auto noise = [](Tape& t) {
    const std::vector<int64_t> numbers = {3, 5};
    Tensor samples = t.empty({2}, DType::i64, "gradient_check.samples");
    copy_bytes_from(samples, std::as_bytes(std::span(numbers)));
    return kernels::NoiseRows{7, 11, {samples}};
  };
  add_case(cases, "jitter", {{6, 5}}, {},
           [noise](Tape& t, auto x, auto) { return jitter(t, x[0], 0.4, noise(t)); });
  add_case(cases, "random_logits", {{6, 5}}, {}, [noise](Tape& t, auto x, auto) {
    return random_logits(t, x[0], {.scale = 0.5, .rows = noise(t)});
  });
  struct Kind {
    const char* name;
    kernels::RouterForm form;
    bool bias = false, selection = false;
    int64_t k = 2;
  };
  using kernels::RouterScore;
  for (const Kind& kind :
       {Kind{"route", {}}, Kind{"route, softmax of all", {.softmax_first = true, .scale = 0.7}},
        Kind{"route, softmax of all normalised", {.softmax_first = true, .normalised = true}},
        Kind{"route, sigmoid", {.score = RouterScore::sigmoid, .scale = 2}},
        Kind{"route, sigmoid of one", {.score = RouterScore::sigmoid}, false, false, 1},
        Kind{"route, sigmoid of groups with bias",
             {.score = RouterScore::sigmoid,
              .normalised = true,
              .scale = 2.5,
              .groups = 3,
              .chosen_groups = 2,
              .group_best = 2},
             true},
        Kind{"route, square root of softplus",
             {.score = RouterScore::sqrt_softplus, .normalised = true},
             true},
        Kind{"route by a selection", {}, false, true}, Kind{"route to all", {}, false, false, 6}}) {
    add_case(cases, kind.name, {{3, 6}}, {}, [kind](Tape& t, auto x, auto) {
      const DType type = x[0].value.dtype();
      const Tensor bias = made<double>(t, type, {6}, {0.5, -1, 0.25, 0, 1.5, -0.5});
      std::vector<double> chosen(18);
      for (size_t i = 0; i < chosen.size(); ++i) chosen[i] = static_cast<double>(i * 7 % 18);
      const Tensor selection = made<double>(t, type, {3, 6}, chosen);
      return route(t, x[0], kind.k, kind.form, kind.bias ? bias : Tensor(),
                   kind.selection ? selection : Tensor())
          .weights;
    });
  }
}

// The contribution of RouterLoss according to its definition, computed from the sums of the forward
// kernel; for six tokens in two segments, of which two do not count except with softmax.
Result loss_of_router(Tape& tape, const Var& logits, kernels::RouterScore score, bool balance) {
  constexpr int64_t kSegments = 2;
  const DType type = logits.value.dtype();
  const auto results = [&](const Shape& shape) {
    return tape.empty(shape, type, "gradient_check.sums");
  };
  const Tensor sums = results({kSegments, kExperts}), counts = results({kSegments, kExperts}),
               squares = results({kSegments}), entropy = results({kSegments});
  Tensor counted;
  if (score != kernels::RouterScore::softmax)
    counted = made<int32_t>(tape, DType::i32, {6}, {0, 1, -1, 3, 4, -1});
  tape.kernels().router_sums({.score = score,
                              .k = kChoices,
                              .logits = logits.value,
                              .counted = counted,
                              .sums = sums,
                              .counts = counts,
                              .squares = squares,
                              .entropy = entropy},
                             tape.stream());
  const std::vector<double> fixed = {1, 0, 2, 1, 3, 1, 0, 2};
  const Tensor loads = made<double>(tape, type, {kSegments, kExperts}, fixed);
  const std::vector<double> weights = {1.5, 0.5};
  const Tensor weight = made<double>(tape, DType::f64, {kSegments}, weights);
  const Var out = add_router_loss(tape, logits,
                                  {.score = score,
                                   .balance = balance ? 0.4 : 0,
                                   .z = balance ? 0 : 0.3,
                                   .counts = loads,
                                   .weight = weight,
                                   .counted = counted});
  std::vector<double> factors;
  for (size_t i = 0; i < fixed.size(); ++i)
    factors.push_back(weights[i / kExperts] * 0.4 * fixed[i]);
  if (balance) return {{out}, sums, made<double>(tape, type, {kSegments, kExperts}, factors)};
  return {
      {out}, squares, made<double>(tape, type, {kSegments}, {weights[0] * 0.3, weights[1] * 0.3})};
}

void add_loss_cases(std::vector<GradientCase>& cases) {
  using kernels::RouterScore;
  for (const auto& [name, score] : {std::pair{"softmax", RouterScore::softmax},
                                    {"sigmoid", RouterScore::sigmoid},
                                    {"square root of softplus", RouterScore::sqrt_softplus}}) {
    for (const bool balance : {true, false})
      add_case(cases, fmt::format("add_router_loss, {}, {}", balance ? "balance" : "z", name),
               {{6, kExperts}}, {}, [score = score, balance](Tape& t, auto x, auto) {
                 return loss_of_router(t, x[0], score, balance);
               });
  }
}

void add_row_cases(std::vector<GradientCase>& cases) {
  for (const int64_t capacity : {0, 2}) {
    const std::string full = capacity > 0 ? " with a capacity" : "";
    const int64_t rows = capacity > 0 ? kExperts * capacity : kTokens * kChoices;
    add_case(cases, "to_experts" + full, {{kTokens, 3}}, {},
             [=](Tape& t, auto x, auto) { return to_experts(t, x[0], some_order(t, capacity)); });
    add_case(cases, "from_experts" + full, {{rows, 3}}, {},
             [=](Tape& t, auto x, auto) { return from_experts(t, x[0], some_order(t, capacity)); });
    add_case(
        cases, "weights_of_rows" + full, {{kTokens, kChoices}}, {},
        [=](Tape& t, auto x, auto) { return weights_of_rows(t, x[0], some_order(t, capacity)); });
    add_case(cases, "grouped_linear" + full, {{rows, 3}}, {{kExperts, 5, 3}},
             [=](Tape& t, auto x, auto w) {
               const ExpertOrder order = some_order(t, capacity);
               return grouped_linear(t, x[0], w[0], {}, order.offsets);
             });
    add_case(cases, "grouped_linear with bias" + full, {{rows, 3}},
             {{kExperts, 5, 3}, {kExperts, 5}}, [=](Tape& t, auto x, auto w) {
               const ExpertOrder order = some_order(t, capacity);
               return grouped_linear(t, x[0], w[0], w[1], order.offsets);
             });
  }
  // Two parts of the five rows of each matrix, with a row between them, and one of all.
  add_case(cases, "add_low_rank of experts", {{kTokens * kChoices, 3}, {kTokens * kChoices, 5}},
           {{kExperts, 2, 3}, {kExperts, 1, 2}, {kExperts, 1, 3}, {kExperts, 3, 1}},
           [](Tape& t, auto x, auto w) {
             const ExpertLowRank adapter{{{.a = w[0], .b = w[1], .row = 0, .scale = 0.5},
                                          {.a = w[2], .b = w[3], .row = 2, .scale = 2}}};
             return add_low_rank(t, adapter, x[0], x[1], some_order(t, 0).offsets);
           });
  add_case(cases, "add_low_rank of experts with a capacity", {{kExperts * 2, 3}, {kExperts * 2, 5}},
           {{kExperts, 2, 3}, {kExperts, 5, 2}}, [](Tape& t, auto x, auto w) {
             return add_low_rank(t, {{{.a = w[0], .b = w[1]}}}, x[0], x[1],
                                 some_order(t, 2).offsets);
           });
  add_case(cases, "scale_rows", {{6, 3}, {6}}, {},
           [](Tape& t, auto x, auto) { return scale_rows(t, x[0], x[1]); });
  // Rows after the last group.
  add_case(cases, "grouped_linear of no expert but one", {{4, 3}}, {{3, 2, 3}, {3, 2}},
           [](Tape& t, auto x, auto w) {
             const Tensor offsets = made<int32_t>(t, DType::i32, {4}, {0, 0, 3, 3});
             return grouped_linear(t, x[0], w[0], w[1], offsets);
           });
}

}  // namespace

void add_expert_cases(std::vector<GradientCase>& cases) {
  add_router_cases(cases);
  add_loss_cases(cases);
  add_row_cases(cases);
}

}  // namespace megatron::ops
