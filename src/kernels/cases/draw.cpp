#include <fmt/core.h>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Drawn {
  int64_t rows = 1, columns = 1;
  DType type = DType::f32;
  DrawArgs::Kind kind = DrawArgs::Kind::normal;
  int64_t first = 0, step = 0;
  Layout layout;
  bool real = false;

  std::string str() const {
    return fmt::format("[{}, {}] {} {}+{} {}", rows, columns,
                       kind == DrawArgs::Kind::normal ? "normal" : "uniform", first, step,
                       describe(type, layout));
  }
};

Case::Call make(const Drawn& d, Runtime& runtime) {
  Inputs inputs(runtime);
  const DrawArgs args{.kind = d.kind,
                      .scale = 0.02,
                      .seed = uint64_t{1} << 40 | 42,
                      .stream = 0x9f3a5c7124680bdf,
                      .first = d.first,
                      .step = d.step,
                      .out = inputs.output("out", {d.rows, d.columns}, d.type, d.layout)};
  return inputs.call([args](Stream& stream, const Table& table) { table.draw(args, stream); });
}

Case draw_case(const Drawn& d) {
  // Logarithm, root, sine, their product and the scale, each within two units; then the rounding to
  // the type.
  return {.kernel = "draw",
          .name = d.str(),
          .dtype = d.type,
          .tolerance = tolerance(d.type, 10),
          .real = d.real,
          .make = [d](Runtime& runtime) { return make(d, runtime); }};
}

}  // namespace

void add_draw_cases(std::vector<Case>& cases) {
  const auto add = [&](const Drawn& d) { cases.push_back(draw_case(d)); };
  using Kind = DrawArgs::Kind;
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const Kind kind : {Kind::normal, Kind::uniform}) {
      add({.rows = 1, .columns = 1, .type = type, .kind = kind});
      add({.rows = 3, .columns = 37, .type = type, .kind = kind, .first = 5, .step = 41});
      add({.rows = 2,
           .columns = 260,
           .type = type,
           .kind = kind,
           .first = (int64_t{1} << 33) - 9,
           .step = 301,
           .layout = kPadded});
    }
    add({.rows = 0, .columns = 8, .type = type});
    add({.rows = 1, .columns = 3001, .type = type, .first = 1, .layout = kMisaligned});
    if (trained(type)) add({.rows = 1, .columns = 3072 * 768, .type = type, .real = true});
  }
}

}  // namespace megatron::kernels
