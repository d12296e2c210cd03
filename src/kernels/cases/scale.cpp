#include <fmt/core.h>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Elements {
  int64_t rows = 1, width = 33;
  DType type = DType::f32;
  Layout layout;
  bool real = false;

  std::string str() const {
    return fmt::format("t={} h={} {}", rows, width, describe(type, layout));
  }
};

Case completed(Case c, const Elements& e, double roundings,
               std::function<Case::Call(Inputs&)> make) {
  c.name = e.str();
  c.dtype = e.type;
  c.tolerance = tolerance(e.type, roundings);
  c.real = e.real;
  c.make = [make](Runtime& runtime) {
    Inputs inputs(runtime);
    return make(inputs);
  };
  return c;
}

Case scale_case(const Elements& e) {
  return completed({.kernel = "scale"}, e, 1, [e](Inputs& inputs) {
    const Shape shape = {e.rows, e.width};
    const ScaleArgs args{0.3, inputs.normal("x", shape, e.type, 1, e.layout),
                         inputs.output("out", shape, e.type, e.layout)};
    return inputs.call([args](Stream& stream, const Table& table) { table.scale(args, stream); });
  });
}

// tanh within 2 u, a division and a product.
Case soft_cap_case(const Elements& e) {
  return completed({.kernel = "soft_cap"}, e, 6, [e](Inputs& inputs) {
    const Shape shape = {e.rows, e.width};
    const SoftCapArgs args{1.5, inputs.normal("x", shape, e.type, 2, e.layout),
                           inputs.output("out", shape, e.type, e.layout)};
    return inputs.call(
        [args](Stream& stream, const Table& table) { table.soft_cap(args, stream); });
  });
}

Case soft_cap_backward_case(const Elements& e) {
  return completed({.kernel = "soft_cap_backward"}, e, 6, [e](Inputs& inputs) {
    const Shape shape = {e.rows, e.width};
    const SoftCapBackwardArgs args{4,
                                   inputs.normal("capped", shape, accumulator(e.type), 1, e.layout),
                                   inputs.normal("dout", shape, e.type, 1, e.layout),
                                   inputs.output("dx", shape, e.type, e.layout)};
    return inputs.call(
        [args](Stream& stream, const Table& table) { table.soft_cap_backward(args, stream); });
  });
}

}  // namespace

void add_scale_cases(std::vector<Case>& cases) {
  for (const auto make : {scale_case, soft_cap_case, soft_cap_backward_case}) {
    for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      for (const int64_t rows : {0, 1, 7})
        cases.push_back(make({.rows = rows, .type = type, .layout = kMisaligned}));
      cases.push_back(make({.rows = 130, .width = 264, .type = type}));
      if (trained(type))
        cases.push_back(make({.rows = 4096, .width = 768, .type = type, .real = true}));
    }
  }
}

}  // namespace megatron::kernels
