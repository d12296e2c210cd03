#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Choices {
  struct {
    int64_t tokens = 1, k = 1, experts = 4;  // over all ranks; some choices are -1
  } sizes;
  int64_t first = 0, groups = 4;
  int64_t capacity = 0, segment = 0;
  KeptRows kept = KeptRows::first;
  bool padded = false;
  int64_t rows = 1;
  bool weights = false;
  bool one = false;  // all go to expert `first`
  double factor = 0;
  bool real = false;
  DType type = DType::f32;

  std::string str() const {
    const auto& [tokens, k, experts] = sizes;
    std::string text = fmt::format("t={} k={} e={} g={}+{} r={} {}", tokens, k, experts, first,
                                   groups, rows, name(type));
    if (capacity > 0) text += fmt::format(" capacity={}", capacity);
    if (segment > 0) text += fmt::format(" segment={}", segment);
    if (factor > 0) text += fmt::format(" factor={}", factor);
    for (const auto& [set, word] : {std::pair{kept == KeptRows::largest, " largest"},
                                    {padded, " padded"},
                                    {weights, " weights"},
                                    {one, " one expert"}}) {
      if (set) text += word;
    }
    return text;
  }
  Tensor chosen(Inputs& inputs) const {
    const auto& [tokens, k, experts] = sizes;
    std::vector<double> values;
    for (int64_t t = 0; inputs.has_data() && t < tokens; ++t) {
      for (int64_t j = 0; j < k; ++j) {
        const int64_t e = (t * 7 + j * 3 + t / 5 * (j + 1) + t % 4 * t) % experts;
        values.push_back(static_cast<double>(one ? first : (t + j) % 11 == 6 ? -1 : e));
      }
    }
    return inputs.values("experts", {tokens, k}, DType::i32, values);
  }
  // Many weights are equal.
  Tensor make_weights(Inputs& inputs) const {
    return inputs.integers("weights", {sizes.tokens, sizes.k}, type, 1, 6);
  }
};

ExpertRowsArgs expert_rows_args(Inputs& inputs, const Choices& c) {
  ExpertRowsArgs args{.experts = c.chosen(inputs),
                      .first = c.first,
                      .capacity = c.capacity,
                      .segment = c.segment,
                      .kept = c.kept,
                      .padded = c.padded,
                      .factor = c.factor,
                      .all_experts = c.sizes.experts};
  if (c.weights || c.kept == KeptRows::largest) args.weights = c.make_weights(inputs);
  args.offsets = inputs.output("offsets", {c.groups + 1}, DType::i32);
  args.slots = inputs.output("slots", {c.rows}, DType::i32);
  args.rows = inputs.output("rows", {c.sizes.tokens, c.sizes.k}, DType::i32);
  return args;
}

// Sizes are {tokens, k, experts}.
std::vector<Choices> choices() {
  std::vector<Choices> list = {
      {.rows = 3},
      {.sizes = {0, 2, 4}, .rows = 5},
      {.sizes = {7, 2, 5}, .groups = 5, .rows = 14, .weights = true},
      {.sizes = {7, 2, 5}, .groups = 5, .rows = 6},
      {.sizes = {7, 2, 5}, .groups = 5, .rows = 0},
      {.sizes = {33, 3, 16}, .first = 4, .groups = 4, .rows = 99},
      {.sizes = {33, 3, 16}, .first = 12, .groups = 4, .rows = 11},
      {.sizes = {40, 2, 6}, .first = 2, .groups = 3, .rows = 80, .one = true},
      {.sizes = {700, 8, 64}, .groups = 64, .rows = 5600},
      {.sizes = {300, 10, 512}, .first = 256, .groups = 256, .rows = 3000},
      {.sizes = {4096, 8, 64}, .groups = 64, .rows = 32768, .real = true},
  };
  Choices divided{.sizes = {42, 3, 12}, .first = 3, .groups = 5, .capacity = 3, .segment = 14};
  divided.rows = 50;
  divided.type = DType::f64;
  Choices some = divided;  // some tokens of each segment are padding
  some.capacity = 6;
  some.factor = 1.5;
  const std::vector<Choices> limited = {
      {.sizes = {40, 2, 8}, .groups = 8, .capacity = 5, .rows = 80},
      {.sizes = {40, 2, 8}, .groups = 8, .capacity = 5, .rows = 27},
      divided,
      some,
      {.sizes = {1200, 2, 40}, .groups = 40, .capacity = 10, .rows = 1200, .factor = 0.16},
      {.sizes = {9, 2, 5}, .groups = 5, .capacity = 4, .segment = 1, .rows = 200},
      {.sizes = {40, 2, 6}, .first = 2, .groups = 3, .capacity = 16, .rows = 64, .one = true},
      {.sizes = {640, 4, 16}, .groups = 16, .capacity = 100, .rows = 1600},
      {.sizes = {0, 2, 4}, .capacity = 3, .rows = 12},
      {.sizes = {4096, 8, 64}, .groups = 64, .capacity = 640, .rows = 40960, .real = true},
  };
  for (const KeptRows kept : {KeptRows::first, KeptRows::largest}) {
    for (const bool padded : {false, true}) {
      for (Choices c : limited) {
        c.kept = kept;
        c.padded = padded;
        list.push_back(c);
      }
    }
  }
  return list;
}

// Rows of H elements, and indices into them.
struct ExpertRows {
  int64_t tokens = 1, k = 1, width = 1;  // tokens x k rows
  bool shared = false;                   // take_rows: entries are slots, k per row
  bool in_place = false;
  bool heads = false;  // sum_rows: without an index
  Layout layout = {};
  bool real = false;
  DType type = DType::f32;

  int64_t count() const { return tokens * k; }
  std::string str() const {
    return fmt::format("t={} k={} h={} {}{}{}{}", tokens, k, width, describe(type, layout),
                       shared ? " shared" : "", in_place ? " in place" : "", heads ? " heads" : "");
  }
  Tensor input(Inputs& inputs, const char* name, int64_t rows) const {
    return inputs.normal(name, {rows, width}, type, 1, layout);
  }
  Tensor output(Inputs& inputs, const char* name, int64_t rows) const {
    return inputs.output(name, {rows, width}, type, layout);
  }
  // Indices of `values` in shuffled order; every seventh is -1.
  Tensor index(Inputs& inputs, Shape shape, int64_t values) const {
    std::vector<double> list;
    for (int64_t i = 0; inputs.has_data() && i < shape.elements(); ++i)
      list.push_back(i % 7 == 3 ? -1 : static_cast<double>(i * 1663 % values));
    return inputs.values("index", shape, DType::i32, list);
  }
};

TakeRowsArgs take_rows_args(Inputs& inputs, const ExpertRows& r) {
  return {r.input(inputs, "x", r.shared ? r.tokens : r.count()),
          r.index(inputs, {r.count()}, r.count()), r.shared ? r.k : 1,
          r.output(inputs, "out", r.count())};
}

SumRowsArgs sum_rows_args(Inputs& inputs, const ExpertRows& r) {
  return {r.input(inputs, "x", r.count()), r.index(inputs, {r.tokens, r.k}, r.count()),
          r.output(inputs, "out", r.tokens)};
}

// The rows of a token are the last columns of its heads.
SumRowsArgs sum_heads_args(Inputs& inputs, const ExpertRows& r) {
  const Tensor heads = inputs.normal("x", {r.tokens, r.k, 2 * r.width}, r.type);
  return {heads.slice(2, r.width, r.width), {}, r.output(inputs, "out", r.tokens)};
}

ScaleRowsArgs scale_rows_args(Inputs& inputs, const ExpertRows& r) {
  ScaleRowsArgs args{.x = r.input(inputs, "x", r.count()),
                     .factors = inputs.normal("factors", {r.count()}, accumulator(r.type))};
  args.out = r.in_place ? inputs.updated("out", args.x) : r.output(inputs, "out", r.count());
  return args;
}

ScaleRowsBackwardArgs scale_rows_backward_args(Inputs& inputs, const ExpertRows& r) {
  const DType sums = accumulator(r.type);
  ScaleRowsBackwardArgs args{.x = r.input(inputs, "x", r.count()),
                             .factors = inputs.normal("factors", {r.count()}, sums),
                             .dout = r.input(inputs, "dout", r.count())};
  args.dx = r.in_place ? inputs.updated("dx", args.dout) : r.output(inputs, "dx", r.count());
  args.dfactors = inputs.output("dfactors", {r.count()}, sums);
  return args;
}

std::vector<ExpertRows> lists_of_rows() {
  std::vector<ExpertRows> list = in_types<ExpertRows>({
      {},
      {.tokens = 0, .k = 2, .width = 8},
      {.tokens = 7, .k = 3, .width = 33, .layout = kMisaligned},
      {.tokens = 70, .k = 2, .width = 64},
      {.tokens = 5, .k = 8, .width = 1000},
      {.tokens = 4096, .k = 8, .width = 1024, .real = true},
  });
  for (const DType type : {DType::f32, DType::bf16}) {  // large enough for stores past the caches
    const int64_t rows = (int64_t{2} << 20) / 1024 / size_of(type) + 8;
    list.push_back({.tokens = rows, .width = 1024, .type = type});
  }
  return list;
}

}  // namespace

void add_expert_rows_cases(std::vector<Case>& cases) {
  const double exact = tolerance(DType::f64, 1);  // of whole numbers and copies
  for (const Choices& c : choices())
    cases.push_back(case_of(&Table::expert_rows, c, exact, expert_rows_args));
  for (ExpertRows r : lists_of_rows()) {
    for (const bool shared : {false, true}) {
      r.shared = shared;
      cases.push_back(case_of(&Table::take_rows, r, exact, take_rows_args));
    }
  }
  for (const ExpertRows& r : lists_of_rows())
    cases.push_back(
        case_of(&Table::sum_rows, r, tolerance(r.type, static_cast<double>(r.k)), sum_rows_args));
  for (ExpertRows r : lists_of_rows()) {
    r.heads = true;
    cases.push_back(
        case_of(&Table::sum_rows, r, tolerance(r.type, static_cast<double>(r.k)), sum_heads_args));
  }
  for (const bool in_place : {false, true}) {
    for (ExpertRows r : lists_of_rows()) {
      if (in_place && r.real) continue;
      r.in_place = in_place;
      cases.push_back(case_of(&Table::scale_rows, r, tolerance(r.type, 1), scale_rows_args));
      // A sum of H products of a random sign is sqrt(H) large and wrong by sqrt(H) u.
      const double dots = 8 + std::sqrt(static_cast<double>(r.width));
      cases.push_back(case_of(&Table::scale_rows_backward, r, tolerance(r.type, dots),
                              scale_rows_backward_args));
    }
  }
}

}  // namespace megatron::kernels
