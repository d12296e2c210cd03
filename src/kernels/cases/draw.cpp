#include <fmt/core.h>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Drawn {
  int64_t rows = 1, columns = 1;
  DrawArgs::Kind kind = DrawArgs::Kind::normal;
  int64_t first = 0, step = 0;
  Layout layout;
  bool real = false;
  DType type = DType::f32;

  std::string str() const {
    return fmt::format("[{}, {}] {} {}+{} {}", rows, columns,
                       kind == DrawArgs::Kind::normal ? "normal" : "uniform", first, step,
                       describe(type, layout));
  }
};

DrawArgs draw_args(Inputs& inputs, const Drawn& d) {
  return {.kind = d.kind,
          .scale = 0.02,
          .seed = uint64_t{1} << 40 | 42,
          .stream = 0x9f3a5c7124680bdf,
          .first = d.first,
          .step = d.step,
          .out = inputs.output("out", {d.rows, d.columns}, d.type, d.layout)};
}

}  // namespace

void add_draw_cases(std::vector<Case>& cases) {
  constexpr int64_t kFar = (int64_t{1} << 33) - 9;
  std::vector<Drawn> shapes = {
      {.rows = 0, .columns = 8},
      {.rows = 1, .columns = 3001, .first = 1, .layout = kMisaligned},
      {.rows = 1, .columns = 3072 * 768, .real = true},
  };
  for (const auto kind : {DrawArgs::Kind::normal, DrawArgs::Kind::uniform}) {
    shapes.push_back({.kind = kind});
    shapes.push_back({.rows = 3, .columns = 37, .kind = kind, .first = 5, .step = 41});
    shapes.push_back({2, 260, kind, kFar, 301, kPadded});
  }
  // Logarithm, root, sine, their product and the scale, each within two units; then the type's.
  for (const Drawn& d : in_types(shapes))
    cases.push_back(case_of(&Table::draw, d, tolerance(d.type, 10), draw_args));
}

}  // namespace megatron::kernels
