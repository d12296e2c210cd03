#include "kernels/matrix_codes.h"

#include <fmt/core.h>

#include <cmath>
#include <limits>

#include "base/divide.h"
#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

// A part of a matrix of 300 rows (real: 4096).
struct PartOfMatrix {
  int64_t columns = 1, begin = 0, n = 0, edge = 0;
  LowFormat format = LowFormat::e4m3;
  Layout layout = {};
  bool real = false;
  DType type = DType::f32;

  MatrixPart part() const { return {.begin = begin, .columns = columns, .edge = edge}; }
  int64_t blocks() const {
    const int64_t rows = real ? 4096 : 300;
    return edge == 0 ? 1 : ceil_div(rows, edge) * ceil_div(columns, edge);
  }
  std::string str() const {
    return fmt::format("{} elements from {} on, {} columns, blocks {}, {} {}", n, begin, columns,
                       edge,
                       format == LowFormat::e4m3   ? "e4m3"
                       : format == LowFormat::e5m2 ? "e5m2"
                                                   : "e2m1",
                       describe(type, layout));
  }
  // Values, an infinity, a NaN and -0 among them.
  Tensor input(Inputs& inputs) const {
    if (!inputs.has_data() || n < 20) return inputs.normal("x", {n}, type, 3, layout);
    std::vector<double> x = to_doubles(inputs.normal("source", {n}, type, 3));
    x[17] = std::numeric_limits<double>::infinity();
    x[11] = std::numeric_limits<double>::quiet_NaN();
    x[3] = -0.0;
    return inputs.values("x", {n}, type, x);
  }
  // The multiplier, or the largest elements of blocks, one of which is 0 and one infinite.
  Tensor scales(Inputs& inputs) const {
    std::vector<double> values(static_cast<size_t>(blocks()), 37.3);
    for (size_t b = 0; edge > 0 && b < values.size(); ++b)
      values[b] = std::exp2(static_cast<double>(b * 5 % 23) - 11) * 1.3;
    if (values.size() > 2) values[1] = 0;
    if (values.size() > 3) values[2] = std::numeric_limits<double>::infinity();
    return inputs.values("scales", {blocks()}, DType::f32, values);
  }
  Tensor scale(Inputs& inputs) const {
    return format == LowFormat::e2m1 ? inputs.values("scale", {}, DType::f32, std::vector{53.76})
                                     : Tensor();
  }
};

PartAmaxArgs amax_args(Inputs& inputs, const PartOfMatrix& m) {
  const std::vector<double> before(static_cast<size_t>(m.blocks()), 0.5);
  return {.x = m.input(inputs),
          .part = m.part(),
          .maxima =
              inputs.updated("maxima", inputs.values("before", {m.blocks()}, DType::f32, before))};
}

EncodePartArgs encode_args(Inputs& inputs, const PartOfMatrix& m) {
  return {.format = m.format,
          .part = m.part(),
          .x = m.input(inputs),
          .scales = m.scales(inputs),
          .codes = inputs.output("codes", {code_bytes(m.format, m.n)}, DType::u8),
          .scale = m.scale(inputs)};
}

DecodePartArgs decode_args(Inputs& inputs, const PartOfMatrix& m) {
  return {.format = m.format,
          .part = m.part(),
          .codes = inputs.integers("codes", {code_bytes(m.format, m.n)}, DType::u8, 0, 256),
          .scales = m.scales(inputs),
          .out = inputs.output("out", {m.n}, m.type, m.layout),
          .scale = m.scale(inputs)};
}

}  // namespace

void add_matrix_codes_cases(std::vector<Case>& cases) {
  const std::vector<PartOfMatrix> all = {
      {.columns = 8, .edge = 128},
      {.columns = 33, .begin = 5, .n = 1},
      {.columns = 33, .begin = 40, .n = 3000, .format = LowFormat::e5m2, .layout = kMisaligned},
      {.columns = 33, .begin = 40, .n = 6000, .edge = 128, .layout = kMisaligned},
      {.columns = 300, .begin = 16384, .n = 40000, .edge = 128},
      {.columns = 33, .begin = 40, .n = 3001, .edge = 16, .format = LowFormat::e2m1},
      {.columns = 300, .begin = 16384, .n = 40000, .edge = 16, .format = LowFormat::e2m1},
      {.columns = 768, .n = 4096 * 768, .real = true},
      {.columns = 768, .n = 4096 * 768, .edge = 128, .real = true},
      {.columns = 768, .n = 4096 * 768, .edge = 16, .format = LowFormat::e2m1, .real = true}};
  for (const PartOfMatrix& m : in_types(all, {DType::f32, DType::bf16, DType::f64})) {
    if (m.type == DType::f64 && m.n > 4000) continue;  // the reference alone has f64
    for (Case made : {case_of(&Table::part_amax, m, 1, amax_args),
                      case_of(&Table::encode_part, m, 1, encode_args),
                      case_of(&Table::decode_part, m, 1, decode_args)}) {
      made.exact = true;
      cases.push_back(std::move(made));
    }
  }
}

}  // namespace megatron::kernels
