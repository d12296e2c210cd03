#include <fmt/core.h>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Noise {
  int64_t samples = 1, length = 1, channels = 1;
  DType type = DType::f32;
  bool in_place = false;
  Layout layout;
  int64_t first_row = 0, rows = 0;  // part of the samples' rows; rows 0: all, passed as such
  bool real = false;

  int64_t count() const { return rows > 0 ? rows : samples * length; }
  std::string str() const {
    return fmt::format("b={} t={} c={} {}{}{}", samples, length, channels, describe(type, layout),
                       in_place ? " in place" : "",
                       rows > 0 ? fmt::format(" rows {}+{}", first_row, rows) : "");
  }
  NoiseRows noise_rows(Inputs& inputs) const {
    NoiseRows noise{42, 4711,
                    inputs.integers("sample_ids", {samples}, DType::i64, 0, int64_t{1} << 40)};
    if (rows == 0) return noise;
    noise.first_row = first_row;
    noise.length = length;
    return noise;
  }
};

Case jitter_case(const Noise& n) {
  return {.kernel = "jitter",
          .name = n.str(),
          .dtype = n.type,
          .tolerance = tolerance(n.type, 4),
          .real = n.real,
          .make = [n](Runtime& runtime) {
            Inputs inputs(runtime);
            const Shape shape{n.count(), n.channels};
            JitterArgs args{.width = 0.3, .rows = n.noise_rows(inputs)};
            args.x = inputs.normal("x", shape, n.type, 1, n.layout);
            args.out = n.in_place ? inputs.updated("out", args.x)
                                  : inputs.output("out", shape, n.type, n.layout);
            return inputs.call(
                [args](Stream& stream, const Table& table) { table.jitter(args, stream); });
          }};
}

Case random_logits_case(const Noise& n, RandomLogitsArgs::Of of, bool added) {
  constexpr const char* kOf[] = {"token", "sample", "all"};
  return {.kernel = "random_logits",
          .name = fmt::format("{} of {}{}", n.str(), kOf[static_cast<size_t>(of)],
                              added ? " added" : ""),
          .dtype = n.type,
          .tolerance = tolerance(n.type, 4),
          .real = n.real,
          .make = [n, of, added](Runtime& runtime) {
            Inputs inputs(runtime);
            const Shape shape{n.count(), n.channels};
            RandomLogitsArgs args{.scale = added ? 0.5 : 1, .of = of};
            if (of != RandomLogitsArgs::Of::all) args.rows = n.noise_rows(inputs);
            if (added) args.x = inputs.normal("x", shape, n.type);
            args.out = inputs.output("out", shape, n.type);
            return inputs.call(
                [args](Stream& stream, const Table& table) { table.random_logits(args, stream); });
          }};
}

}  // namespace

void add_noise_cases(std::vector<Case>& cases) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const Noise& n :
         {Noise{}, Noise{.samples = 2, .length = 3, .channels = 33, .layout = kMisaligned},
          Noise{.samples = 3, .length = 7, .channels = 2, .in_place = true},
          Noise{.samples = 1, .length = 0, .channels = 8},
          Noise{.samples = 2, .length = 50, .channels = 96},
          Noise{.samples = 3, .length = 7, .channels = 33, .first_row = 5, .rows = 11},
          Noise{.samples = 4, .length = 1024, .channels = 768, .real = true}}) {
      if (n.real && !trained(type)) continue;
      Noise typed = n;
      typed.type = type;
      cases.push_back(jitter_case(typed));
    }
  }
  using Of = RandomLogitsArgs::Of;
  for (const DType type : {DType::f32, DType::f64}) {
    for (const Of of : {Of::token, Of::sample, Of::all}) {
      for (const Noise& n :
           {Noise{}, Noise{.samples = 3, .length = 5, .channels = 13},
            Noise{.samples = 1, .length = 0, .channels = 8},
            Noise{.samples = 3, .length = 7, .channels = 300, .first_row = 5, .rows = 11}}) {
        Noise typed = n;
        typed.type = type;
        cases.push_back(random_logits_case(typed, of, n.channels == 13));
      }
    }
  }
}

}  // namespace megatron::kernels
