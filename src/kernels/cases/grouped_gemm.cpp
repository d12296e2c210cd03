#include <fmt/core.h>

#include <cmath>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

enum class Spread {
  uneven,  // 0 to 4 parts of the rows per group; some groups are empty
  even,
  one,  // all rows are in the last group but one
};

struct Groups {
  int64_t groups = 1, rows = 1;  // rows in groups; `rest` rows in no group
  int64_t rest = 0;
  int64_t k = 1, n = 1;  // row widths of a and of out
  Spread spread = Spread::uneven;
  bool transpose_b = false, bias = false, scaled = false;
  float beta = 0;
  Layout layout = {};
  bool real = false;
  DType type = DType::f32;

  std::string str() const {
    constexpr const char* kSpreads[] = {"uneven", "even", "one"};
    return fmt::format("g={} r={}+{} k={} n={} {} {}{}{}{}{}", groups, rows, rest, k, n,
                       kSpreads[static_cast<size_t>(spread)], describe(type, layout),
                       transpose_b ? " T" : "", bias ? " bias" : "",
                       beta != 0 ? " accumulated" : "", scaled ? " scaled" : "");
  }
  int64_t parts(int64_t group) const {
    if (spread == Spread::even) return 1;
    if (spread == Spread::one) return group == (groups > 1 ? groups - 2 : 0);
    return (group * 7 + 3) % 5;
  }
  Tensor offsets(Inputs& inputs) const {
    int64_t all = 0, before = 0;
    for (int64_t g = 0; g < groups; ++g) all += parts(g);
    std::vector<double> values = {0};
    for (int64_t g = 0; g < groups; ++g)
      values.push_back(static_cast<double>(rows * (before += parts(g)) / all));
    return inputs.values("offsets", {groups + 1}, DType::i32, values);
  }
  // Rows of zeros make the rms of a result smaller than that of its other rows.
  double zeros() const {
    const double filled = spread == Spread::one ? 1 / static_cast<double>(groups) : 0.5;
    return 1 / std::sqrt(filled);
  }
};

Tensor scale_of(Inputs& inputs, const char* name, double value) {
  return inputs.values(name, {}, DType::f32, std::span(&value, 1));
}

GroupedGemmArgs grouped_gemm_args(Inputs& inputs, const Groups& g) {
  const Shape b = g.transpose_b ? Shape{g.groups, g.n, g.k} : Shape{g.groups, g.k, g.n};
  GroupedGemmArgs args{.a = inputs.normal("a", {g.rows + g.rest, g.k}, g.type, 1, g.layout),
                       .b = inputs.normal("b", b, g.type, 1, g.layout)};
  if (g.bias) args.bias = inputs.normal("bias", {g.groups, g.n}, g.type, 1, g.layout);
  args.offsets = g.offsets(inputs);
  args.out = inputs.output("out", {g.rows + g.rest, g.n}, g.type, g.layout);
  args.transpose_b = g.transpose_b;
  if (g.scaled) {
    args.a_scale = scale_of(inputs, "a_scale", 3.7);
    args.b_scale = scale_of(inputs, "b_scale", 0.3);
  }
  return args;
}

// Same tolerance as for gemm.
Case grouped_gemm_case(const Groups& g) {
  const double walk = 1 + 0.4 * std::sqrt(static_cast<double>(g.k));
  return case_of(&Table::grouped_gemm, g, tolerance(g.type, walk), grouped_gemm_args);
}

GroupedGradientArgs grouped_gradient_args(Inputs& inputs, const Groups& g) {
  const DType sums = accumulator(g.type);
  const int64_t all = g.rows + g.rest;
  GroupedGradientArgs args{.dy = inputs.normal("dy", {all, g.n}, g.type, 1, g.layout),
                           .x = inputs.normal("x", {all, g.k}, g.type, 1, g.layout),
                           .offsets = g.offsets(inputs)};
  args.dw = inputs.sum("dw", {g.groups, g.n, g.k}, sums, g.beta, g.layout);
  if (g.bias) args.dbias = inputs.sum("dbias", {g.groups, g.n}, sums, g.beta, g.layout);
  if (g.scaled) {
    args.dy_scale = scale_of(inputs, "dy_scale", 1.7);
    args.x_scale = scale_of(inputs, "x_scale", 0.6);
  }
  return args;
}

// Sums over the rows of a group, k by n.
Case grouped_gradient_case(const Groups& g) {
  const double walk = 1 + 0.4 * std::sqrt(static_cast<double>(g.rows));
  return case_of(&Table::grouped_gradient, g, tolerance(accumulator(g.type), walk) * g.zeros(),
                 grouped_gradient_args);
}

std::vector<Groups> grouped_shapes() {
  std::vector<Groups> list = {
      {},
      {.groups = 3, .rows = 0, .k = 4, .n = 5},
      {.groups = 3, .rows = 0, .rest = 4, .k = 4, .n = 5, .bias = true, .beta = 1},
      {.groups = 5, .rows = 23, .rest = 3, .k = 13, .n = 33, .bias = true, .layout = kMisaligned},
      {.groups = 4, .rows = 4, .k = 257, .n = 2, .spread = Spread::even},
      {.groups = 8, .rows = 40, .rest = 7, .k = 64, .n = 96, .beta = 1},
      {.groups = 3, .rows = 201, .k = 40, .n = 72, .spread = Spread::even, .bias = true, .beta = 1},
      {.groups = 6, .rows = 70, .k = 136, .n = 48, .spread = Spread::one},
      {.groups = 3, .rows = 20, .rest = 2, .k = 40, .n = 24, .bias = true, .scaled = true},
      {.groups = 6, .rows = 300, .rest = 20, .k = 24, .n = 136, .bias = true},
      {.groups = 2, .rows = 5, .k = 8, .n = 0},
  };
  // Up and down of an expert; as many rows as 4096 tokens of 8 choices have, or 256 tokens.
  for (const int64_t rows : {32768, 2048}) {
    for (const auto& [k, n] : {std::pair{1024, 512}, {512, 1024}})
      list.push_back({.groups = 64, .rows = rows, .k = k, .n = n, .real = true});
  }
  return in_types(list);
}

}  // namespace

void add_grouped_gemm_cases(std::vector<Case>& cases) {
  for (Groups g : grouped_shapes()) {
    g.beta = 0;
    cases.push_back(grouped_gemm_case(g));
    g.transpose_b = true;
    cases.push_back(grouped_gemm_case(g));
  }
  for (const Groups& g :
       in_types<Groups>({{.groups = 2, .rows = 3, .rest = 1, .k = 0, .n = 5, .bias = true}}))
    cases.push_back(grouped_gemm_case(g));
  for (const Groups& g : grouped_shapes()) cases.push_back(grouped_gradient_case(g));
}

}  // namespace megatron::kernels
