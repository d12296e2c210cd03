#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Choices {
  int64_t tokens = 1, k = 1, experts = 4;  // on all ranks; some choices are -1
  int64_t first = 0, groups = 4;
  int64_t capacity = 0, segment = 0;
  KeptRows kept = KeptRows::first;
  bool padded = false;
  int64_t rows = 1;
  bool weights = false;
  bool one = false;  // all tokens go to expert `first`
  DType type = DType::f32;
  bool real = false;

  std::string str() const {
    std::string text = fmt::format("t={} k={} e={} g={}+{} r={} {}", tokens, k, experts, first,
                                   groups, rows, name(type));
    if (capacity > 0) text += fmt::format(" capacity={}", capacity);
    if (segment > 0) text += fmt::format(" segment={}", segment);
    for (const auto& [set, word] : {std::pair{kept == KeptRows::largest, " largest"},
                                    {padded, " padded"},
                                    {weights, " weights"},
                                    {one, " one expert"}}) {
      if (set) text += word;
    }
    return text;
  }
  Tensor chosen(Inputs& inputs) const {
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
    return inputs.integers("weights", {tokens, k}, type, 1, 6);
  }
};

Case expert_rows_case(const Choices& c) {
  return {.kernel = "expert_rows",
          .name = c.str(),
          .dtype = c.type,
          .tolerance = tolerance(DType::f64, 1),  // integers
          .real = c.real,
          .make = [c](Runtime& runtime) {
            Inputs inputs(runtime);
            ExpertRowsArgs args{.experts = c.chosen(inputs),
                                .first = c.first,
                                .capacity = c.capacity,
                                .segment = c.segment,
                                .kept = c.kept,
                                .padded = c.padded};
            if (c.weights || c.kept == KeptRows::largest) args.weights = c.make_weights(inputs);
            args.offsets = inputs.output("offsets", {c.groups + 1}, DType::i32);
            args.slots = inputs.output("slots", {c.rows}, DType::i32);
            args.rows = inputs.output("rows", {c.tokens, c.k}, DType::i32);
            return inputs.call(
                [args](Stream& stream, const Table& table) { table.expert_rows(args, stream); });
          }};
}

std::vector<Choices> choices() {
  std::vector<Choices> list = {
      {.rows = 3},
      {.tokens = 0, .k = 2, .rows = 5},
      {.tokens = 7, .k = 2, .experts = 5, .groups = 5, .rows = 14, .weights = true},
      {.tokens = 7, .k = 2, .experts = 5, .groups = 5, .rows = 6},
      {.tokens = 7, .k = 2, .experts = 5, .groups = 5, .rows = 0},
      {.tokens = 33, .k = 3, .experts = 16, .first = 4, .groups = 4, .rows = 99},
      {.tokens = 33, .k = 3, .experts = 16, .first = 12, .groups = 4, .rows = 11},
      {.tokens = 40, .k = 2, .experts = 6, .first = 2, .groups = 3, .rows = 80, .one = true},
      {.tokens = 700, .k = 8, .experts = 64, .groups = 64, .rows = 5600},
      {.tokens = 300, .k = 10, .experts = 512, .first = 256, .groups = 256, .rows = 3000},
  };
  for (const KeptRows kept : {KeptRows::first, KeptRows::largest}) {
    for (const bool padded : {false, true}) {
      const auto add = [&](Choices c) {
        c.kept = kept;
        c.padded = padded;
        list.push_back(c);
      };
      add({.tokens = 40, .k = 2, .experts = 8, .groups = 8, .capacity = 5, .rows = 80});
      add({.tokens = 40, .k = 2, .experts = 8, .groups = 8, .capacity = 5, .rows = 27});
      add({.tokens = 42,
           .k = 3,
           .experts = 12,
           .first = 3,
           .groups = 5,
           .capacity = 3,
           .segment = 14,
           .rows = 50,
           .type = DType::f64});
      add({.tokens = 9,
           .k = 2,
           .experts = 5,
           .groups = 5,
           .capacity = 4,
           .segment = 1,
           .rows = 200});
      add({.tokens = 40,
           .k = 2,
           .experts = 6,
           .first = 2,
           .groups = 3,
           .capacity = 16,
           .rows = 64,
           .one = true});
      add({.tokens = 640, .k = 4, .experts = 16, .groups = 16, .capacity = 100, .rows = 1600});
      add({.tokens = 0, .k = 2, .capacity = 3, .rows = 12});
      add({.tokens = 4096,
           .k = 8,
           .experts = 64,
           .groups = 64,
           .capacity = 640,
           .rows = 40960,
           .real = true});
    }
  }
  list.push_back(
      {.tokens = 4096, .k = 8, .experts = 64, .groups = 64, .rows = 32768, .real = true});
  return list;
}

// Rows of H elements, and indices into them.
struct ExpertRows {
  int64_t tokens = 1, k = 1, width = 1;  // tokens x k rows
  bool shared = false;                   // take_rows: entries are slots, k per row
  bool in_place = false;
  DType type = DType::f32;
  Layout layout = {};
  bool real = false;

  int64_t count() const { return tokens * k; }
  std::string str() const {
    return fmt::format("t={} k={} h={} {}{}{}", tokens, k, width, describe(type, layout),
                       shared ? " shared" : "", in_place ? " in place" : "");
  }
  // Indices of `values` in shuffled order; every seventh is -1.
  Tensor index(Inputs& inputs, Shape shape, int64_t values) const {
    std::vector<double> list;
    for (int64_t i = 0; inputs.has_data() && i < shape.elements(); ++i)
      list.push_back(i % 7 == 3 ? -1 : static_cast<double>(i * 1663 % values));
    return inputs.values("index", shape, DType::i32, list);
  }
};

Case take_rows_case(const ExpertRows& r) {
  return {.kernel = "take_rows",
          .name = r.str(),
          .dtype = r.type,
          .tolerance = tolerance(DType::f64, 1),  // a copy
          .real = r.real,
          .make = [r](Runtime& runtime) {
            Inputs inputs(runtime);
            const int64_t from = r.shared ? r.tokens : r.count();
            const TakeRowsArgs args{inputs.normal("x", {from, r.width}, r.type, 1, r.layout),
                                    r.index(inputs, {r.count()}, r.count()), r.shared ? r.k : 1,
                                    inputs.output("out", {r.count(), r.width}, r.type, r.layout)};
            return inputs.call(
                [args](Stream& stream, const Table& table) { table.take_rows(args, stream); });
          }};
}

Case sum_rows_case(const ExpertRows& r) {
  return {.kernel = "sum_rows",
          .name = r.str(),
          .dtype = r.type,
          .tolerance = tolerance(r.type, static_cast<double>(r.k)),
          .real = r.real,
          .make = [r](Runtime& runtime) {
            Inputs inputs(runtime);
            const SumRowsArgs args{inputs.normal("x", {r.count(), r.width}, r.type, 1, r.layout),
                                   r.index(inputs, {r.tokens, r.k}, r.count()),
                                   inputs.output("out", {r.tokens, r.width}, r.type, r.layout)};
            return inputs.call(
                [args](Stream& stream, const Table& table) { table.sum_rows(args, stream); });
          }};
}

Case scale_rows_case(const ExpertRows& r) {
  return {.kernel = "scale_rows",
          .name = r.str(),
          .dtype = r.type,
          .tolerance = tolerance(r.type, 1),
          .real = r.real,
          .make = [r](Runtime& runtime) {
            Inputs inputs(runtime);
            const Shape shape{r.count(), r.width};
            ScaleRowsArgs args{inputs.normal("x", shape, r.type, 1, r.layout),
                               inputs.normal("factors", {r.count()}, accumulator(r.type)),
                               {}};
            args.out = r.in_place ? inputs.updated("out", args.x)
                                  : inputs.output("out", shape, r.type, r.layout);
            return inputs.call(
                [args](Stream& stream, const Table& table) { table.scale_rows(args, stream); });
          }};
}

// A sum of H products of random sign has size sqrt(H) and error sqrt(H) u.
Case scale_rows_backward_case(const ExpertRows& r) {
  return {.kernel = "scale_rows_backward",
          .name = r.str(),
          .dtype = r.type,
          .tolerance = tolerance(r.type, 8 + std::sqrt(static_cast<double>(r.width))),
          .real = r.real,
          .make = [r](Runtime& runtime) {
            Inputs inputs(runtime);
            const Shape shape{r.count(), r.width};
            const DType sums = accumulator(r.type);
            ScaleRowsBackwardArgs args{inputs.normal("x", shape, r.type, 1, r.layout),
                                       inputs.normal("factors", {r.count()}, sums),
                                       inputs.normal("dout", shape, r.type, 1, r.layout)};
            args.dx = r.in_place ? inputs.updated("dx", args.dout)
                                 : inputs.output("dx", shape, r.type, r.layout);
            args.dfactors = inputs.output("dfactors", {r.count()}, sums);
            return inputs.call([args](Stream& stream, const Table& table) {
              table.scale_rows_backward(args, stream);
            });
          }};
}

std::vector<ExpertRows> lists_of_rows() {
  std::vector<ExpertRows> list;
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    const auto add = [&](ExpertRows r) {
      r.type = type;
      list.push_back(r);
    };
    add({});
    add({.tokens = 0, .k = 2, .width = 8});
    add({.tokens = 7, .k = 3, .width = 33, .layout = kMisaligned});
    add({.tokens = 70, .k = 2, .width = 64});
    add({.tokens = 5, .k = 8, .width = 1000});
    if (trained(type) && type != DType::f16)  // large enough for streaming stores
      add({.tokens = (int64_t{2} << 20) / 1024 / size_of(type) + 8, .width = 1024});
    if (trained(type)) add({.tokens = 4096, .k = 8, .width = 1024, .real = true});
  }
  return list;
}

}  // namespace

void add_expert_rows_cases(std::vector<Case>& cases) {
  for (const Choices& c : choices()) cases.push_back(expert_rows_case(c));
  for (const ExpertRows& r : lists_of_rows()) {
    cases.push_back(take_rows_case(r));
    ExpertRows shared = r;
    shared.shared = true;
    cases.push_back(take_rows_case(shared));
  }
  for (const ExpertRows& r : lists_of_rows()) cases.push_back(sum_rows_case(r));
  for (const auto make : {scale_rows_case, scale_rows_backward_case}) {
    for (ExpertRows r : lists_of_rows()) {
      cases.push_back(make(r));
      r.in_place = true;
      if (!r.real) cases.push_back(make(r));
    }
  }
}

}  // namespace megatron::kernels
