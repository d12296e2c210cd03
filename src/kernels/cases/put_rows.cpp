#include <fmt/core.h>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Put {
  int64_t tokens = 1, pages = 1, page = 1, heads = 1, width = 1;
  bool by_head = false;  // rows of one head in a page are adjacent
  Layout layout = {};
  DType type = DType::f32;

  std::string str() const {
    return fmt::format("t={} pages={}x{} k={} d={} {}{}", tokens, pages, page, heads, width,
                       describe(type, layout), by_head ? " by head" : "");
  }
};

PutRowsArgs put_rows_args(Inputs& inputs, const Put& p) {
  std::vector<double>
      rows;  // every fifth token is skipped (-1); the others are written in reverse order
  for (int64_t t = 0; t < p.tokens; ++t)
    rows.push_back(t % 5 == 3 ? -1 : static_cast<double>(p.pages * p.page - 1 - t));
  const Shape shape = p.by_head ? Shape{p.pages, p.heads, p.page, p.width}
                                : Shape{p.pages, p.page, p.heads, p.width};
  const auto filled = [&](const char* name, Shape size, Layout layout) {
    return is_floating(p.type) ? inputs.normal(name, size, p.type, 1, layout)
                               : inputs.integers(name, size, p.type, -9, 9);
  };
  Tensor out = inputs.updated("out", filled("out", shape, {}));
  if (p.by_head) out = out.transpose(1, 2);
  return {filled("x", {p.tokens, p.heads, p.width}, p.layout),
          inputs.values("rows", {p.tokens}, DType::i32, rows), out};
}

}  // namespace

void add_put_rows_cases(std::vector<Case>& cases) {
  const std::vector<Put> shapes = {
      {},
      {.tokens = 0, .page = 3, .width = 8},
      {.tokens = 7, .pages = 4, .page = 8, .heads = 3, .width = 24, .layout = kPadded},
      {.tokens = 90, .pages = 2, .page = 64, .heads = 4, .width = 128},
      {.tokens = 90, .pages = 2, .page = 64, .heads = 4, .width = 64, .by_head = true},
      {.tokens = 12, .pages = 3, .page = 4, .heads = 2, .width = 33, .by_head = true},
  };
  std::vector<Put> all = in_types(shapes);
  all.push_back({.tokens = 70, .page = 90, .width = 3, .type = DType::i32});
  for (const Put& p : all)  // a copy
    cases.push_back(case_of(&Table::put_rows, p, tolerance(DType::f64, 1), put_rows_args));
}

}  // namespace megatron::kernels
