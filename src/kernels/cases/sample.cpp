#include <fmt/core.h>

#include <cmath>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Sampled {
  int64_t rows = 1, width = 1;
  double scale = 3;  // of the logits
  Layout layout = {};
  std::vector<double> rules = {};  // for all rows; empty: each row has its own
  bool real = false;
  DType type = DType::f32;

  std::string str() const {
    std::string text = fmt::format("[{}, {}] {}", rows, width, describe(type, layout));
    if (scale == 0) text += " equal";
    for (size_t i = 0; i < rules.size(); ++i)
      text += fmt::format("{}{}", i == 0 ? " rules " : "/", rules[i]);
    return text;
  }
};

std::vector<double> rules_of(const Sampled& s) {
  const std::vector<double> temperatures = {0.7, 0, 1, 2.5, -1, 1e-300}, cuts = {0, 1, 5, 40, 1e6},
                            shares = {1, 0.9, 0.5, 1e-9}, least = {0, 0, 0.05, 1};
  std::vector<double> rules;
  for (int64_t r = 0; r < s.rows; ++r) {
    if (!s.rules.empty()) {
      rules.insert(rules.end(), s.rules.begin(), s.rules.end());
      rules.back() = std::fmod(static_cast<double>(r) * 0.6180339887 + 0.31, 1.0);
      continue;
    }
    const auto i = static_cast<size_t>(r);
    const double uniform = r % 7 == 6 ? 1 - 0x1p-53 : std::fmod(0.37 * static_cast<double>(r), 1.0);
    for (const double rule : {temperatures[i % temperatures.size()], cuts[i % cuts.size()],
                              shares[i % shares.size()], least[i / 4 % least.size()], uniform})
      rules.push_back(rule);
  }
  return rules;
}

SampleArgs sample_args(Inputs& inputs, const Sampled& s) {
  return {inputs.normal("logits", {s.rows, s.width}, s.type, s.scale, s.layout),
          inputs.values("rules", {s.rows, kSampleRules}, DType::f64, rules_of(s)),
          inputs.output("ids", {s.rows}, DType::i32)};
}

// Logits from which no token, or not every token, can be sampled.
SampleArgs special_args(Inputs& inputs, const Named& named) {
  constexpr double kInf = HUGE_VAL;
  const std::vector<double> logits = {-kInf, 2,     -kInf, 1,      // row by row
                                      -kInf, -kInf, -kInf, -kInf,  //
                                      1,     NAN,   3,     0,      //
                                      0,     kInf,  1,     2,      //
                                      -0.0,  0,     -0.0,  -5,     //
                                      -kInf, -kInf, -3,    -kInf,  //
                                      -kInf, NAN,   -kInf, -kInf};
  const auto rows = static_cast<int64_t>(logits.size() / 4);
  std::vector<double> rules;
  for (int64_t r = 0; r < rows; ++r)
    for (const double rule : {r == 2 ? 0 : 0.8, 3.0, 0.95, 0.0, r == 4 ? 0.5 : 0.95})
      rules.push_back(rule);
  return {inputs.values("logits", {rows, 4}, named.type, logits),
          inputs.values("rules", {rows, kSampleRules}, DType::f64, rules),
          inputs.output("ids", {rows}, DType::i32)};
}

}  // namespace

void add_sample_cases(std::vector<Case>& cases) {
  std::vector<Sampled> shapes = in_types<Sampled>({
      {.rows = 0, .width = 5},
      {.rows = 6},
      {.rows = 61, .width = 37, .layout = kMisaligned},
      {.rows = 60, .width = 301, .layout = kPadded},
      {.rows = 30, .width = 67, .scale = 0},
      {.rows = 9, .width = 3001},
  });
  for (const std::vector<double>& rules :
       {std::vector<double>{0, 0, 1, 0, 0}, {0.7, 0, 1, 0, 0}, {0.7, 50, 0.9, 0, 0}})
    shapes.push_back({.rows = 32, .width = 128256, .rules = rules, .real = true});
  const double exact = tolerance(DType::f64, 1);  // ids
  for (const Sampled& s : shapes) cases.push_back(case_of(&Table::sample, s, exact, sample_args));
  for (const DType type : kFloats) {
    const Named named{fmt::format("infinities and NaN {}", name(type)), type};
    cases.push_back(case_of(&Table::sample, named, exact, special_args));
  }
}

}  // namespace megatron::kernels
