#include <fmt/core.h>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct DropoutBlock {
  int64_t samples = 1, length = 1, channels = 1;
  DType type = DType::f32;
  float p = 0.25f;
  bool in_place = false;
  Layout layout;
  bool real = false;
  int64_t first_row = 0, rows = 0;  // part of the samples' rows; rows 0: all, passed as such

  std::string str() const {
    return fmt::format("b={} t={} c={} p={} {}{}{}", samples, length, channels, p,
                       describe(type, layout), in_place ? " in place" : "",
                       rows > 0 ? fmt::format(" rows {}+{}", first_row, rows) : "");
  }
};

Case::Call make(const DropoutBlock& d, Runtime& runtime) {
  Inputs inputs(runtime);
  const Shape shape{d.rows > 0 ? d.rows : d.samples * d.length, d.channels};
  DropoutArgs args{
      .mask = {d.p, 42, 4711,
               inputs.integers("sample_ids", {d.samples}, DType::i64, 0, int64_t{1} << 40)}};
  if (d.rows > 0) {
    args.mask.first_row = d.first_row;
    args.mask.length = d.length;
  }
  args.x = inputs.normal("x", shape, d.type, 1, d.layout);
  args.out =
      d.in_place ? inputs.updated("out", args.x) : inputs.output("out", shape, d.type, d.layout);
  return inputs.call([args](Stream& stream, const Table& table) { table.dropout(args, stream); });
}

Case dropout_case(const DropoutBlock& d) {
  return {.kernel = "dropout",
          .name = d.str(),
          .dtype = d.type,
          .tolerance = tolerance(d.type, 2),  // 1 / (1 - p) and the product; the mask is exact
          .real = d.real,
          .make = [d](Runtime& runtime) { return make(d, runtime); }};
}

}  // namespace

void add_dropout_cases(std::vector<Case>& cases) {
  const auto add = [&](const DropoutBlock& d) { cases.push_back(dropout_case(d)); };
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    add({.type = type});
    add({.samples = 2, .length = 3, .channels = 33, .type = type, .layout = kMisaligned});
    add({.samples = 3, .length = 7, .channels = 2, .type = type, .p = 0.5f, .in_place = true});
    add({.samples = 2, .length = 3, .channels = 33, .type = type, .p = 0});
    add({.samples = 1, .length = 0, .channels = 8, .type = type});
    add({.samples = 2, .length = 50, .channels = 96, .type = type, .p = 0.1f});
    add({.samples = 3,
         .length = 7,
         .channels = 33,
         .type = type,
         .layout = kMisaligned,
         .first_row = 5,
         .rows = 11});
    add({.samples = 2, .length = 3, .channels = 8, .type = type, .first_row = 0, .rows = 6});
    add({.samples = 2, .length = 9, .channels = 8, .type = type, .first_row = 17, .rows = 1});
    if (trained(type))
      add({.samples = 4, .length = 1024, .channels = 768, .type = type, .p = 0.1f, .real = true});
  }
}

}  // namespace megatron::kernels
