#include <fmt/core.h>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

constexpr double kCap = 1.5;

struct Capped {
  Shape shape;
  DType type = DType::f32;
  Layout layout;
  bool in_place = false, real = false;

  std::string str() const {
    return fmt::format("{} {}{}", shape.str(), describe(type, layout), in_place ? " in place" : "");
  }
};

Case soft_cap_case(const Capped& c) {
  return {.kernel = "soft_cap",
          .name = c.str(),
          .dtype = c.type,
          .tolerance = tolerance(c.type, 12),  // tanh within 4 u, its argument twice rounded
          .real = c.real,
          .make = [c](Runtime& runtime) {
            Inputs inputs(runtime);
            SoftCapArgs args{.cap = kCap, .x = inputs.normal("x", c.shape, c.type, 2, c.layout)};
            args.out = c.in_place ? inputs.updated("out", args.x)
                                  : inputs.output("out", c.shape, c.type, c.layout);
            return inputs.call(
                [args](Stream& stream, const Table& table) { table.soft_cap(args, stream); });
          }};
}

Case soft_cap_backward_case(const Capped& c) {
  return {.kernel = "soft_cap_backward",
          .name = c.str(),
          .dtype = c.type,
          .tolerance = tolerance(c.type, 16),  // 1 - tanh^2 cancels for values beyond the cap
          .real = c.real,
          .make = [c](Runtime& runtime) {
            Inputs inputs(runtime);
            SoftCapBackwardArgs args{
                .cap = kCap,
                .out = inputs.normal("out", c.shape, accumulator(c.type), 0.5, c.layout),
                .dout = inputs.normal("dout", c.shape, c.type, 1, c.layout)};
            args.dx = c.in_place ? inputs.updated("dx", args.dout)
                                 : inputs.output("dx", c.shape, c.type, c.layout);
            return inputs.call([args](Stream& stream, const Table& table) {
              table.soft_cap_backward(args, stream);
            });
          }};
}

std::vector<Capped> capped_shapes() {
  std::vector<Capped> list;
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const int64_t rows : {0, 1, 7}) list.push_back({{rows, 33}, type, kMisaligned});
    list.push_back({{5, 64}, type, {}, true});
    if (trained(type)) list.push_back({{1024, 4096}, type, {}, false, true});
  }
  return list;
}

}  // namespace

void add_soft_cap_cases(std::vector<Case>& cases) {
  for (const Capped& c : capped_shapes()) cases.push_back(soft_cap_case(c));
  for (const Capped& c : capped_shapes()) cases.push_back(soft_cap_backward_case(c));
}

}  // namespace megatron::kernels
