#include <fmt/core.h>

#include <limits>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Merged {
  int64_t batch = 1, length = 1, heads = 1, width = 8;
  bool real = false;
  DType type = DType::f32;

  std::string str() const {
    return fmt::format("b={} t={} n={} d={} {}", batch, length, heads, width, describe(type, {}));
  }
};

// Every fifth query sees no key of the first part, every seventh none of the second.
Tensor lse_of(Inputs& inputs, const Merged& m, const char* name, int64_t unseen) {
  std::vector<double> values;
  for (int64_t i = 0; i < m.batch * m.heads * m.length; ++i)
    values.push_back(i % unseen == unseen - 1 ? -std::numeric_limits<double>::infinity()
                                              : static_cast<double>(i * 37 % 11) * 0.75 - 3);
  return inputs.values(name, {m.batch, m.heads, m.length}, accumulator(m.type), values);
}

AttentionMergeArgs merge_args(Inputs& inputs, const Merged& m) {
  const Shape shape{m.batch, m.length, m.heads, m.width};
  AttentionMergeArgs args{.part = inputs.normal("part", shape, m.type)};
  args.part_lse = lse_of(inputs, m, "part_lse", 7);
  args.lse = lse_of(inputs, m, "lse", 5);
  args.out = inputs.updated("out", inputs.normal("out", shape, accumulator(m.type)));
  args.merged_lse = inputs.output("merged_lse", {m.batch, m.heads, m.length}, accumulator(m.type));
  return args;
}

}  // namespace

void add_attention_merge_cases(std::vector<Case>& cases) {
  const std::vector<Merged> shapes = {
      {},
      {.batch = 2, .length = 5, .heads = 7, .width = 33},
      {.batch = 1, .length = 0, .heads = 2, .width = 8},
      {.batch = 1, .length = 70, .heads = 3, .width = 64},
      {.batch = 1, .length = 4096, .heads = 12, .width = 64, .real = true},
  };
  for (const Merged& m : in_types(shapes))  // two exps, a log, two sums
    cases.push_back(
        case_of(&Table::attention_merge, m, tolerance(accumulator(m.type), 16), merge_args));
}

}  // namespace megatron::kernels
