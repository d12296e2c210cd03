#include <fmt/core.h>

#include <cmath>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Rotation {
  int64_t tokens = 1, heads = 1, width = 2, half = 1;
  bool interleaved = false, inverse = false;
  bool in_place = false, packed = false;  // packed: heads are part of a wider row
  Layout layout;
  bool real = false, large = false;
  DType type = DType::f32;

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

RopeArgs rope_args(Inputs& inputs, const Rotation& r) {
  RopeArgs args{.interleaved = r.interleaved, .inverse = r.inverse};
  args.x = inputs.normal("x", {r.tokens, r.packed ? r.heads + 4 : r.heads, r.width}, r.type, 1,
                         r.layout);
  if (r.packed) args.x = args.x.slice(1, 1, r.heads);
  args.out = r.in_place ? inputs.updated("out", args.x)
                        : inputs.output("out", {r.tokens, r.heads, r.width}, r.type, r.layout);
  args.cos = angles(inputs, "cos", r, std::cos);
  args.sin = angles(inputs, "sin", r, std::sin);
  args.positions = inputs.integers("positions", {r.tokens}, DType::i32, 0, kPositions);
  return args;
}

// The shapes of both kinds of pairs.
std::vector<Rotation> rotations(bool interleaved) {
  std::vector<Rotation> list = {{}, {.tokens = 0, .heads = 2, .width = 8, .half = 4}};
  for (const bool inverse : {false, true}) {
    Rotation padded{.tokens = 7, .heads = 3, .width = 33, .half = 11, .layout = kPadded},
        packed{.tokens = 70, .heads = 4, .width = 64, .half = 32, .in_place = true, .packed = true};
    padded.inverse = packed.inverse = inverse;
    list.push_back(padded);
    list.push_back(packed);
  }
  for (Rotation& r : list) r.interleaved = interleaved;
  return in_types(list);
}

// Queries and keys of a Llama with 12 heads and 4 groups, in place in the output of the qkv
// product, and their gradients; the same for a Llama of 8 billion parameters.
std::vector<Rotation> real_rotations() {
  std::vector<Rotation> list;
  for (const bool inverse : {false, true}) {
    Rotation r{.tokens = 4096, .heads = 12 + 4, .width = 64, .half = 32, .inverse = inverse};
    r.in_place = r.packed = r.real = true;
    for (const Rotation& typed : in_types<Rotation>({r})) list.push_back(typed);
    r.heads = 32 + 8;
    r.width = 128;
    r.half = 64;
    r.large = true;
    r.type = DType::bf16;
    list.push_back(r);
  }
  return list;
}

}  // namespace

void add_rope_cases(std::vector<Case>& cases) {
  for (const auto& list : {rotations(false), rotations(true), real_rotations()}) {
    for (const Rotation& r : list)  // two products and their sum
      cases.push_back(case_of(&Table::rope, r, tolerance(r.type, 2), rope_args));
  }
}

}  // namespace megatron::kernels
