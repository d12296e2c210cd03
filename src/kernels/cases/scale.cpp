#include <fmt/core.h>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

Case scale_case(Shape shape, DType type, Layout layout, bool in_place, bool real) {
  return {.kernel = "scale",
          .name = fmt::format("{} {}{}", shape.str(), describe(type, layout),
                              in_place ? " in place" : ""),
          .dtype = type,
          .tolerance = tolerance(type, 2),  // the factor, and the product
          .real = real,
          .make = [=](Runtime& runtime) {
            Inputs inputs(runtime);
            ScaleArgs args{.factor = 0.3, .x = inputs.normal("x", shape, type, 1, layout)};
            args.out = in_place ? inputs.updated("out", args.x)
                                : inputs.output("out", shape, type, layout);
            return inputs.call(
                [args](Stream& stream, const Table& table) { table.scale(args, stream); });
          }};
}

}  // namespace

void add_scale_cases(std::vector<Case>& cases) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const int64_t rows : {0, 1, 7})
      cases.push_back(scale_case({rows, 33}, type, kMisaligned, false, false));
    cases.push_back(scale_case({5, 64}, type, {}, true, false));
    if (trained(type)) cases.push_back(scale_case({4096, 768}, type, {}, false, true));
  }
}

}  // namespace megatron::kernels
