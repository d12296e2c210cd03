#include <fmt/core.h>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Put {
  int64_t tokens = 1, rows = 1, width = 1;
  DType type = DType::f32;
  Layout layout = {};
};

Case case_of(const Put& p) {
  return {.kernel = "put_rows",
          .name = fmt::format("t={} r={} w={} {}", p.tokens, p.rows, p.width,
                              describe(p.type, p.layout)),
          .dtype = p.type,
          .tolerance = tolerance(DType::f64, 1),  // a copy
          .make = [p](Runtime& runtime) {
            Inputs inputs(runtime);
            std::vector<double> rows;  // every fifth stays; the others go backwards
            for (int64_t t = 0; t < p.tokens; ++t)
              rows.push_back(t % 5 == 3 ? -1 : static_cast<double>(p.rows - 1 - t));
            const PutRowsArgs args{
                inputs.normal("x", {p.tokens, p.width}, p.type, 1, p.layout),
                inputs.values("rows", {p.tokens}, DType::i32, rows),
                inputs.updated("out", inputs.normal("out", {p.rows, p.width}, p.type))};
            return inputs.call(
                [args](Stream& stream, const Table& table) { table.put_rows(args, stream); });
          }};
}

}  // namespace

void add_put_rows_cases(std::vector<Case>& cases) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const Put& p : {Put{.type = type}, Put{.tokens = 0, .rows = 3, .width = 8, .type = type},
                         Put{.tokens = 7, .rows = 32, .width = 24, .type = type, .layout = kPadded},
                         Put{.tokens = 90, .rows = 128, .width = 1024, .type = type},
                         Put{.tokens = 12, .rows = 12, .width = 33, .type = type}})
      cases.push_back(case_of(p));
  }
}

}  // namespace megatron::kernels
