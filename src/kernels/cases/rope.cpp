#include <fmt/core.h>

#include <cmath>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Rotation {
  int64_t tokens = 1, heads = 1, width = 2, half = 1;
  DType type = DType::f32;
  bool interleaved = false, inverse = false;
  bool in_place = false, packed = false;  // packed: heads are part of a wider row
  Layout layout;
  bool real = false, large = false;

  std::string str() const {
    return fmt::format("t={} n={} d={} half={} {}{}{}{}{}", tokens, heads, width, half,
                       describe(type, layout), interleaved ? " interleaved" : "",
                       inverse ? " inverse" : "", in_place ? " in place" : "",
                       packed ? " packed" : "");
  }
};

constexpr int64_t kPositions = 50;

Tensor angles(Inputs& inputs, const char* name, const Rotation& r, double (*function)(double)) {
  std::vector<double> values;
  for (int64_t p = 0; p < kPositions; ++p) {
    for (int64_t i = 0; i < r.half; ++i) {
      values.push_back(
          function(static_cast<double>(p) *
                   std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(r.half))));
    }
  }
  return inputs.values(name, {kPositions, r.half}, accumulator(r.type), values);
}

Case::Call make(const Rotation& r, Runtime& runtime) {
  Inputs inputs(runtime);
  RopeArgs args{.interleaved = r.interleaved, .inverse = r.inverse};
  args.x = inputs.normal("x", {r.tokens, r.packed ? r.heads + 4 : r.heads, r.width}, r.type, 1,
                         r.layout);
  if (r.packed) args.x = args.x.slice(1, 1, r.heads);
  args.out = r.in_place ? inputs.updated("out", args.x)
                        : inputs.output("out", {r.tokens, r.heads, r.width}, r.type, r.layout);
  args.cos = angles(inputs, "cos", r, std::cos);
  args.sin = angles(inputs, "sin", r, std::sin);
  args.positions = inputs.integers("positions", {r.tokens}, DType::i32, 0, kPositions);
  return inputs.call([args](Stream& stream, const Table& table) { table.rope(args, stream); });
}

Case rope_case(const Rotation& r) {
  return {.kernel = "rope",
          .name = r.str(),
          .dtype = r.type,
          .tolerance = tolerance(r.type, 2),  // two products and their sum
          .real = r.real,
          .large = r.large,
          .make = [r](Runtime& runtime) { return make(r, runtime); }};
}

}  // namespace

void add_rope_cases(std::vector<Case>& cases) {
  const auto add = [&](const Rotation& r) { cases.push_back(rope_case(r)); };
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const bool interleaved : {false, true}) {
      add({.type = type, .interleaved = interleaved});
      add({.tokens = 0,
           .heads = 2,
           .width = 8,
           .half = 4,
           .type = type,
           .interleaved = interleaved});
      for (const bool inverse : {false, true}) {
        add({.tokens = 7,
             .heads = 3,
             .width = 33,
             .half = 11,
             .type = type,
             .interleaved = interleaved,
             .inverse = inverse,
             .layout = kPadded});
        add({.tokens = 70,
             .heads = 4,
             .width = 64,
             .half = 32,
             .type = type,
             .interleaved = interleaved,
             .inverse = inverse,
             .in_place = true,
             .packed = true});
      }
    }
    if (!trained(type)) continue;
    // Queries and keys of a Llama with 12 heads and 4 groups, in place in the fused product's
    // output, and their gradients.
    for (const bool inverse : {false, true}) {
      add({.tokens = 4096,
           .heads = 12 + 4,
           .width = 64,
           .half = 32,
           .type = type,
           .inverse = inverse,
           .in_place = true,
           .packed = true,
           .real = true});
      if (type != DType::bf16) continue;
      add({.tokens = 4096,
           .heads = 32 + 8,
           .width = 128,
           .half = 64,
           .type = type,
           .inverse = inverse,
           .in_place = true,
           .packed = true,
           .real = true,
           .large = true});
    }
  }
}

}  // namespace megatron::kernels
