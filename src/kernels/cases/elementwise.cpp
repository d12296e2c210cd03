#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "base/divide.h"
#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

// Rows with padding between them, each aligned to 16-byte vectors.
constexpr Layout kAlignedRows = {.offset = 16, .row_padding = 16};

double rounding(DType type) { return tolerance(type, 1); }

DType widest(std::initializer_list<DType> types) {
  const auto size = [](DType type) { return size_of(type); };
  return *std::ranges::max_element(types, {}, size);
}

Case add_case(Shape shape, DType a, DType b, DType out, Layout layout, bool in_place, bool real,
              bool row = false) {
  const Named named{fmt::format("{} {}+{}{} to {}{}", shape.str(), name(a), row ? "one row " : "",
                                name(b), describe(out, layout), in_place ? " in place" : ""),
                    widest({a, b, out}), real};
  return case_of(&Table::add, named, rounding(out), [=](Inputs& inputs, const Named&) {
    AddArgs args{
        .a = inputs.normal("a", shape, a, 1, layout),
        .b = inputs.normal("b", row ? Shape{shape[1]} : shape, b, 1, {.offset = layout.offset})};
    args.out = in_place ? inputs.updated("out", args.a) : inputs.output("out", shape, out, layout);
    return args;
  });
}

Case copy_case(Shape shape, DType from, DType to, Layout layout, bool transposed, bool real) {
  const Named named{fmt::format("{} {} to {}{}", shape.str(), name(from), describe(to, layout),
                                transposed ? " transposed" : ""),
                    widest({from, to}), real};
  const double bound = is_floating(to) ? rounding(to) : 0x1p-53;
  return case_of(&Table::copy, named, bound, [=](Inputs& inputs, const Named&) {
    CopyArgs args{.x = is_floating(from) ? inputs.normal("x", shape, from, 1, layout)
                                         : inputs.integers("x", shape, from, 0, 100)};
    if (transposed) args.x = args.x.transpose(0, -1);
    args.out = inputs.output("out", args.x.shape(), to, layout);
    return args;
  });
}

// The keys' columns of the fused product for queries, keys and values, extracted or written back.
Case part_of_rows_case(DType type, bool out) {
  constexpr int64_t kTokens = 4096, kColumns = 768, kWidth = 3 * kColumns;
  const Named named{fmt::format("[{}, {}] {} {} rows of {}", kTokens, kColumns, name(type),
                                out ? "out of" : "into", kWidth),
                    type, true};
  return case_of(&Table::copy, named, rounding(type), [=](Inputs& inputs, const Named&) {
    const auto part = [&](const Tensor& all) { return all.slice(1, kColumns, kColumns); };
    const Shape whole{kTokens, kWidth}, own{kTokens, kColumns};
    if (out) {
      return CopyArgs{part(inputs.normal("x", whole, type)), inputs.output("out", own, type)};
    }
    return CopyArgs{inputs.normal("x", own, type),
                    part(inputs.updated("out", inputs.normal("out", whole, type)))};
  });
}

Case fill_case(Shape shape, DType type, double value, Layout layout, bool real) {
  const Named named{fmt::format("{} {} value={}", shape.str(), describe(type, layout), value), type,
                    real};
  return case_of(&Table::fill, named, 0x1p-53, [=](Inputs& inputs, const Named&) {
    return FillArgs{inputs.output("out", shape, type, layout), value};
  });
}

Case column_sum_case(int64_t rows, int64_t n, DType type, float beta, Layout layout, bool real) {
  const DType wide = accumulator(type);
  const Named named{fmt::format("t={} n={} {}{}", rows, n, describe(type, layout),
                                beta != 0 ? " accumulated" : ""),
                    type, real};
  const double bound = tolerance(wide, 2 + 0.4 * std::sqrt(rows));  // a sum of T normal values
  return case_of(&Table::column_sum, named, bound, [=](Inputs& inputs, const Named&) {
    return ColumnSumArgs{inputs.normal("x", {rows, n}, type, 1, layout),
                         inputs.sum("out", {n}, wide, beta)};
  });
}

Case sum_case(int64_t n, DType type, bool weighted, bool real) {
  const Named named{fmt::format("t={} {}{}", n, name(type), weighted ? " weighted" : ""), type,
                    real};
  // The order of the additions is specified; a multiplication and addition may be fused.
  return case_of(&Table::sum, named, 0x1p-50, [=](Inputs& inputs, const Named&) {
    SumArgs args{.x = inputs.positive("x", {n}, type, 0.5)};
    if (weighted) args.weights = inputs.positive("weights", {n}, type);
    args.out = inputs.output("out", {}, DType::f64);
    return args;
  });
}

Case sum_of_squares_case(int64_t n, DType type, Layout layout, bool real) {
  const Named named{fmt::format("n={} {}", n, describe(type, layout)), type, real};
  // The order of the additions is specified, so the error is below the last bit.
  return case_of(&Table::sum_of_squares, named, 0x1p-53, [=](Inputs& inputs, const Named&) {
    return SumOfSquaresArgs{inputs.normal("x", {n}, type, 1, layout),
                            inputs.output("partial", {ceil_div(n, kNormBlock)}, DType::f64)};
  });
}

const Shape kSmallShapes[] = {{1}, {2, 1}, {7, 33}, {0, 5}, {3, 40, 17}};

void add_add_cases(std::vector<Case>& cases) {
  for (const DType a : kFloats) {
    for (const DType b : kFloats) {
      for (const DType out : kFloats) {
        cases.push_back(add_case({7, 33}, a, b, out, kMisaligned, false, false));
        cases.push_back(add_case({7, 33}, a, b, out, kMisaligned, false, false, true));
      }
    }
    for (const Shape& shape : kSmallShapes)
      cases.push_back(add_case(shape, a, a, a, {}, false, false));
    cases.push_back(add_case({7, 33}, a, DType::f32, a, {}, true, false));
    cases.push_back(add_case({5, 40}, a, a, a, {}, true, false, true));
    cases.push_back(add_case({0, 3}, a, a, a, {}, false, false, true));
  }
  for (const DType type : {DType::f32, DType::bf16}) {
    cases.push_back(add_case({4096, 768}, type, type, type, {}, false, true));
    cases.push_back(add_case({4096, 768}, type, type, type, {}, true, true, true));
  }
}

void add_copy_cases(std::vector<Case>& cases) {
  for (const DType from : kFloats) {
    for (const DType to : kFloats) {
      cases.push_back(copy_case({7, 33}, from, to, kPadded, false, false));
      cases.push_back(copy_case({5, 3, 70}, from, to, {}, true, false));
      cases.push_back(copy_case({70, 3, 75}, from, to, kMisaligned, true, false));
      cases.push_back(copy_case({9, 64}, from, to, kAlignedRows, false, false));
    }
    for (const Shape& shape : kSmallShapes)
      cases.push_back(copy_case(shape, from, from, {}, false, false));
  }
  for (const DType type : {DType::i64, DType::i32, DType::i16, DType::i8, DType::u16, DType::u8}) {
    cases.push_back(copy_case({7, 33}, type, type, kMisaligned, true, false));
    cases.push_back(copy_case({70, 75}, type, type, {}, true, false));
  }
  cases.push_back(copy_case({2, 2, 3, 3, 2, 5}, DType::f32, DType::bf16, {}, true, false));
  for (const auto& [from, to] :
       {std::pair{DType::f32, DType::bf16}, {DType::bf16, DType::f32}, {DType::f32, DType::f32}}) {
    cases.push_back(copy_case({4096, 768}, from, to, {}, false, true));
  }
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    for (const bool out : {true, false}) cases.push_back(part_of_rows_case(type, out));
  }
}

void add_reductions(std::vector<Case>& cases) {
  for (const DType type : kFloats) {
    for (const float beta : {0.0f, 1.0f}) {
      cases.push_back(column_sum_case(1, 1, type, beta, {}, false));
      cases.push_back(column_sum_case(7, 33, type, beta, kMisaligned, false));
      cases.push_back(column_sum_case(0, 5, type, beta, {}, false));
      cases.push_back(column_sum_case(300, 70, type, beta, {}, false));
      cases.push_back(column_sum_case(70, 4200, type, beta, {}, false));
    }
    if (!trained(type)) continue;
    for (const int64_t n : {768, 3072})
      cases.push_back(column_sum_case(4096, n, type, 1, {}, true));
  }
  for (const DType type : {DType::f32, DType::f64}) {
    for (const int64_t n : {1, 2, 33, 5000}) {
      for (const bool weighted : {false, true}) cases.push_back(sum_case(n, type, weighted, false));
    }
  }
  cases.push_back(sum_case(0, DType::f32, true, false));
  cases.push_back(sum_case(4096, DType::f32, true, true));
  for (const DType type : {DType::f32, DType::f64}) {
    for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{33}, kNormBlock,
                            kNormBlock + 1, 3 * kNormBlock - 5}) {
      cases.push_back(sum_of_squares_case(n, type, n % 2 == 1 ? kMisaligned : Layout{}, false));
    }
  }
  cases.push_back(sum_of_squares_case(50304 * 768, DType::f32, {}, true));
}

}  // namespace

void add_elementwise_cases(std::vector<Case>& cases) {
  add_add_cases(cases);
  add_copy_cases(cases);
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32,
                           DType::i16, DType::u8}) {
    for (const Shape& shape : kSmallShapes)
      cases.push_back(fill_case(shape, type, 3, kMisaligned, false));
  }
  cases.push_back(fill_case({7, 33}, DType::f64, 0.1, {}, false));
  cases.push_back(fill_case({7, 33}, DType::bf16, 0.1, {}, false));
  cases.push_back(fill_case({}, DType::f64, 0.1, {}, false));
  cases.push_back(fill_case({50304, 768}, DType::f32, 0, {}, true));
  add_reductions(cases);
}

}  // namespace megatron::kernels
