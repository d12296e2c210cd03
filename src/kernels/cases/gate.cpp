#include <fmt/core.h>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct GatedRows {
  Shape shape;
  DType type = DType::f32;
  Layout in, out;
  bool in_place = false, real = false;

  std::string str() const {
    return fmt::format("{} {} to {}{}", shape.str(), describe(type, in), describe(type, out),
                       in_place ? " in place" : "");
  }
};

Case gate_case(const GatedRows& r) {
  return {.kernel = "gate",
          .name = r.str(),
          .dtype = r.type,
          .tolerance = tolerance(r.type, 8),
          .real = r.real,
          .make = [r](Runtime& runtime) {
            Inputs inputs(runtime);
            GateArgs args{.x = inputs.normal("x", r.shape, r.type, 1, r.in),
                          .gate = inputs.normal("gate", r.shape, r.type, 3, r.in)};
            args.out = r.in_place ? inputs.updated("out", args.x)
                                  : inputs.output("out", r.shape, r.type, r.out);
            return inputs.call(
                [args](Stream& stream, const Table& table) { table.gate(args, stream); });
          }};
}

Case gate_backward_case(const GatedRows& r) {
  return {.kernel = "gate_backward",
          .name = r.str(),
          .dtype = r.type,
          .tolerance = tolerance(r.type, 16),
          .real = r.real,
          .make = [r](Runtime& runtime) {
            Inputs inputs(runtime);
            GateBackwardArgs args{.x = inputs.normal("x", r.shape, r.type, 1, r.in),
                                  .gate = inputs.normal("gate", r.shape, r.type, 3, r.in),
                                  .dout = inputs.normal("dout", r.shape, r.type, 1, r.in)};
            args.dx = r.in_place ? inputs.updated("dx", args.dout)
                                 : inputs.output("dx", r.shape, r.type, r.out);
            args.dgate = inputs.output("dgate", r.shape, r.type, r.out);
            return inputs.call(
                [args](Stream& stream, const Table& table) { table.gate_backward(args, stream); });
          }};
}

std::vector<GatedRows> gate_shapes() {
  std::vector<GatedRows> list;
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const int64_t rows : {0, 1, 7}) list.push_back({{rows, 33}, type, kPadded, kMisaligned});
    list.push_back({{7, 33}, type, {}, kPadded});
    list.push_back({{5, 64}, type, {}, {}});
    list.push_back({{5, 64}, type, {.offset = 0, .row_padding = 64}, {}, true});
    if (trained(type)) list.push_back({{4096, 1024}, type, {}, {}, false, true});
  }
  return list;
}

}  // namespace

void add_gate_cases(std::vector<Case>& cases) {
  for (const GatedRows& r : gate_shapes()) cases.push_back(gate_case(r));
  for (const GatedRows& r : gate_shapes()) cases.push_back(gate_backward_case(r));
}

}  // namespace megatron::kernels
