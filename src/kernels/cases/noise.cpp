#include <fmt/core.h>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Noise {
  int64_t samples = 1, length = 1, channels = 1;
  bool in_place = false;
  Layout layout;
  int64_t first_row = 0, rows = 0;  // part of the samples' rows; rows 0: all, passed as such
  bool apart = false;               // tokens of a rank that does not hold whole sequences
  bool real = false;
  DType type = DType::f32;

  int64_t count() const { return rows > 0 ? rows : samples * length; }
  std::string str() const {
    return fmt::format("b={} t={} c={} {}{}{}", samples, length, channels, describe(type, layout),
                       in_place ? " in place" : "",
                       rows > 0 ? fmt::format(" rows {}+{}", first_row, rows) : "") +
           (apart ? " positions" : "");
  }
  NoiseRows noise_rows(Inputs& inputs) const {
    NoiseRows noise{
        42, 4711, {inputs.integers("sample_ids", {samples}, DType::i64, 0, int64_t{1} << 40)}};
    if (apart)
      noise.tokens.positions =
          inputs.integers("positions", {samples * length}, DType::i32, 0, 4 * length);
    if (rows == 0) return noise;
    noise.tokens.first = first_row;
    noise.tokens.length = length;
    return noise;
  }
};

JitterArgs jitter_args(Inputs& inputs, const Noise& n) {
  const Shape shape{n.count(), n.channels};
  JitterArgs args{.width = 0.3, .rows = n.noise_rows(inputs)};
  args.x = inputs.normal("x", shape, n.type, 1, n.layout);
  args.out =
      n.in_place ? inputs.updated("out", args.x) : inputs.output("out", shape, n.type, n.layout);
  return args;
}

Case random_logits_case(const Noise& noise, RandomLogitsArgs::Of of, bool added) {
  constexpr const char* kOf[] = {"token", "sample", "all"};
  Case made = case_of(&Table::random_logits, noise, tolerance(noise.type, 4),
                      [=](Inputs& inputs, const Noise& n) {
                        const Shape shape{n.count(), n.channels};
                        RandomLogitsArgs args{.scale = added ? 0.5 : 1, .of = of};
                        if (of != RandomLogitsArgs::Of::all) args.rows = n.noise_rows(inputs);
                        if (added) args.x = inputs.normal("x", shape, n.type);
                        args.out = inputs.output("out", shape, n.type);
                        return args;
                      });
  made.name += fmt::format(" of {}{}", kOf[static_cast<size_t>(of)], added ? " added" : "");
  return made;
}

}  // namespace

void add_noise_cases(std::vector<Case>& cases) {
  const std::vector<Noise> rows = {
      {},
      {.samples = 2, .length = 3, .channels = 33, .layout = kMisaligned},
      {.samples = 3, .length = 7, .channels = 2, .in_place = true},
      {.samples = 1, .length = 0, .channels = 8},
      {.samples = 2, .length = 50, .channels = 96},
      {.samples = 3, .length = 7, .channels = 33, .first_row = 5, .rows = 11},
      {.samples = 3, .length = 7, .channels = 33, .first_row = 5, .rows = 11, .apart = true},
      {.samples = 4, .length = 1024, .channels = 768, .real = true},
  };
  for (const Noise& n : in_types(rows))
    cases.push_back(case_of(&Table::jitter, n, tolerance(n.type, 4), jitter_args));
  const std::vector<Noise> logits = {
      {},
      {.samples = 3, .length = 5, .channels = 13},
      {.samples = 1, .length = 0, .channels = 8},
      {.samples = 3, .length = 7, .channels = 300, .first_row = 5, .rows = 11},
      {.samples = 2, .length = 5, .channels = 12, .apart = true},
  };
  using Of = RandomLogitsArgs::Of;
  for (const Noise& n : in_types(logits, {DType::f32, DType::f64})) {
    for (const Of of : {Of::token, Of::sample, Of::all})
      cases.push_back(random_logits_case(n, of, n.channels == 13));
  }
}

}  // namespace megatron::kernels
