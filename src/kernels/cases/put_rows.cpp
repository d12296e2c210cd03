#include <fmt/core.h>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Put {
  int64_t tokens = 1, pages = 1, page = 1, heads = 1, width = 1;
  DType type = DType::f32;
  Layout layout = {};
  bool by_head = false;  // the rows of a head are contiguous within a page
};

Case case_of(const Put& p) {
  return {.kernel = "put_rows",
          .name = fmt::format("t={} pages={}x{} k={} d={} {}{}", p.tokens, p.pages, p.page, p.heads,
                              p.width, describe(p.type, p.layout), p.by_head ? " by head" : ""),
          .dtype = p.type,
          .tolerance = tolerance(DType::f64, 1),  // a copy
          .make = [p](Runtime& runtime) {
            Inputs inputs(runtime);
            // Every fifth token is skipped; the others are in reverse order.
            std::vector<double> rows;
            for (int64_t t = 0; t < p.tokens; ++t)
              rows.push_back(t % 5 == 3 ? -1 : static_cast<double>(p.pages * p.page - 1 - t));
            const Shape shape = p.by_head ? Shape{p.pages, p.heads, p.page, p.width}
                                          : Shape{p.pages, p.page, p.heads, p.width};
            Tensor out = inputs.updated("out", inputs.normal("out", shape, p.type));
            if (p.by_head) out = out.transpose(1, 2);
            const PutRowsArgs args{
                inputs.normal("x", {p.tokens, p.heads, p.width}, p.type, 1, p.layout),
                inputs.values("rows", {p.tokens}, DType::i32, rows), out};
            return inputs.call(
                [args](Stream& stream, const Table& table) { table.put_rows(args, stream); });
          }};
}

}  // namespace

void add_put_rows_cases(std::vector<Case>& cases) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const Put& p :
         {Put{.type = type}, Put{.tokens = 0, .page = 3, .width = 8, .type = type},
          Put{.tokens = 7,
              .pages = 4,
              .page = 8,
              .heads = 3,
              .width = 24,
              .type = type,
              .layout = kPadded},
          Put{.tokens = 90, .pages = 2, .page = 64, .heads = 4, .width = 128, .type = type},
          Put{.tokens = 90,
              .pages = 2,
              .page = 64,
              .heads = 4,
              .width = 64,
              .type = type,
              .by_head = true},
          Put{.tokens = 12,
              .pages = 3,
              .page = 4,
              .heads = 2,
              .width = 33,
              .type = type,
              .by_head = true}})
      cases.push_back(case_of(p));
  }
}

}  // namespace megatron::kernels
