#include <fmt/core.h>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct DropoutBlock {
  int64_t samples = 1, length = 1, channels = 1;
  float p = 0.25f;
  bool in_place = false;
  int64_t first_row = 0, rows = 0;  // of the samples' rows; rows 0: all, given as such
  bool apart = false;               // tokens of a rank that does not hold whole sequences
  int64_t first_channel = 0;        // of a rank that does not hold all channels
  Layout layout;
  bool real = false;
  DType type = DType::f32;

  std::string str() const {
    return fmt::format("b={} t={} c={} p={} {}{}{}", samples, length, channels, p,
                       describe(type, layout), in_place ? " in place" : "",
                       rows > 0 ? fmt::format(" rows {}+{}", first_row, rows) : "") +
           (apart ? " positions" : "") +
           (first_channel > 0 ? fmt::format(" channels from {}", first_channel) : "");
  }
};

DropoutArgs dropout_args(Inputs& inputs, const DropoutBlock& d) {
  const Shape shape{d.rows > 0 ? d.rows : d.samples * d.length, d.channels};
  DropoutArgs args{
      .mask = {d.p, 42, 4711,
               inputs.integers("sample_ids", {d.samples}, DType::i64, 0, int64_t{1} << 40)}};
  args.mask.first_channel = d.first_channel;
  if (d.rows > 0) {
    args.mask.rows.first = d.first_row;
    args.mask.rows.length = d.length;
  }
  if (d.apart)
    args.mask.rows.positions =
        inputs.integers("positions", {d.samples * d.length}, DType::i32, 0, 4 * d.length);
  args.x = inputs.normal("x", shape, d.type, 1, d.layout);
  args.out =
      d.in_place ? inputs.updated("out", args.x) : inputs.output("out", shape, d.type, d.layout);
  return args;
}

}  // namespace

void add_dropout_cases(std::vector<Case>& cases) {
  const std::vector<DropoutBlock> shapes = {
      {},
      {.samples = 2, .length = 3, .channels = 33, .layout = kMisaligned},
      {.samples = 3, .length = 7, .channels = 2, .p = 0.5f, .in_place = true},
      {.samples = 2, .length = 3, .channels = 33, .p = 0},
      {.samples = 1, .length = 0, .channels = 8},
      {.samples = 2, .length = 50, .channels = 96, .p = 0.1f},
      {.samples = 3,
       .length = 7,
       .channels = 33,
       .first_row = 5,
       .rows = 11,
       .layout = kMisaligned},
      {.samples = 2, .length = 3, .channels = 8, .first_row = 0, .rows = 6},
      {.samples = 2, .length = 9, .channels = 8, .first_row = 17, .rows = 1},
      {.samples = 3, .length = 7, .channels = 33, .first_row = 5, .rows = 11, .apart = true},
      {.samples = 2, .length = 5, .channels = 40, .apart = true},
      {.samples = 2, .length = 5, .channels = 70, .first_channel = 36},
      {.samples = 4, .length = 1024, .channels = 768, .p = 0.1f, .real = true},
  };
  for (const DropoutBlock& d : in_types(shapes))  // 1 / (1 - p), and the product
    cases.push_back(case_of(&Table::dropout, d, tolerance(d.type, 2), dropout_args));
}

}  // namespace megatron::kernels
