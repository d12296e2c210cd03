#include <fmt/core.h>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

Case squared_error_case(int64_t tokens, DType type, Layout layout, bool gradient, bool real) {
  return {.kernel = "squared_error",
          .name = fmt::format("t={} {}{}", tokens, describe(type, layout),
                              gradient ? "" : " without gradient"),
          .dtype = type,
          .tolerance = tolerance(type, 4),
          .real = real,
          .make = [=](Runtime& runtime) {
            Inputs inputs(runtime);
            const DType wide = accumulator(type);
            std::vector<double> weights;
            for (int64_t t = 0; t < tokens; ++t) weights.push_back(t % 3 == 0 ? 0 : 0.25);
            const SquaredErrorArgs args{
                .x = inputs.normal("x", {tokens}, type, 1, layout),
                .targets = inputs.normal("targets", {tokens}, wide, 1, layout),
                .weights = inputs.values("weights", {tokens}, wide, weights),
                .loss = inputs.output("loss", {tokens}, wide, layout),
                .dx = gradient ? inputs.output("dx", {tokens}, type, layout) : Tensor()};
            return inputs.call(
                [args](Stream& stream, const Table& table) { table.squared_error(args, stream); });
          }};
}

}  // namespace

void add_squared_error_cases(std::vector<Case>& cases) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const int64_t tokens : {0, 1, 35})
      cases.push_back(squared_error_case(tokens, type, kMisaligned, true, false));
    cases.push_back(squared_error_case(64, type, {}, false, false));
    if (trained(type)) cases.push_back(squared_error_case(4096, type, {}, true, true));
  }
}

}  // namespace megatron::kernels
