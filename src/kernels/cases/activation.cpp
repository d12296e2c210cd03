#include <fmt/core.h>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Block {
  Activation function = Activation::gelu_tanh;
  bool gated = false;
  int64_t rows = 1, width = 1;  // of out
  Layout layout;
  bool real = false, large = false;
  DType type = DType::f32;
  double clamp = 0, up_offset = 0;

  int64_t in_width() const { return gated ? 2 * width : width; }
  std::string str() const {
    constexpr const char* kNames[] = {"gelu_tanh", "gelu_erf",     "silu",
                                      "relu",      "squared_relu", "quick_gelu"};
    return fmt::format("{}{}{} t={} f={} {}", kNames[static_cast<int>(function)],
                       gated ? " gated" : "", clamp > 0 || up_offset != 0 ? " clamped" : "", rows,
                       width, describe(type, layout));
  }
};

ActivationArgs activation_args(Inputs& inputs, const Block& s) {
  return {.function = s.function,
          .gated = s.gated,
          .x = inputs.normal("x", {s.rows, s.in_width()}, s.type, 3, s.layout),
          .out = inputs.output("out", {s.rows, s.width}, s.type, s.layout),
          .clamp = s.clamp,
          .up_offset = s.up_offset};
}

ActivationBackwardArgs activation_backward_args(Inputs& inputs, const Block& s) {
  return {.function = s.function,
          .gated = s.gated,
          .x = inputs.normal("x", {s.rows, s.in_width()}, s.type, 3, s.layout),
          .dout = inputs.normal("dout", {s.rows, s.width}, s.type, 1, s.layout),
          .dx = inputs.output("dx", {s.rows, s.in_width()}, s.type, s.layout),
          .clamp = s.clamp,
          .up_offset = s.up_offset};
}

std::vector<Block> activation_shapes() {
  using enum Activation;
  std::vector<Block> list = {
      {.function = quick_gelu, .gated = true, .rows = 9, .width = 50, .clamp = 2.5, .up_offset = 1},
      {.function = silu, .gated = true, .rows = 3, .width = 64, .clamp = 1},
  };
  for (const Activation f : {gelu_tanh, gelu_erf, silu, relu, squared_relu, quick_gelu}) {
    for (const bool gated : {false, true}) {
      list.push_back({f, gated, 1, 1});
      list.push_back({f, gated, 7, 33, kMisaligned});
      list.push_back({f, gated, 0, 4});
      list.push_back({f, gated, 64, 100});
    }
  }
  for (const Activation f : {squared_relu, gelu_tanh, gelu_erf, silu})
    list.push_back({f, f == silu, 4096, 3072, {}, true});
  list = in_types(list);
  list.push_back({silu, true, 4096, 14336, {}, true, true, DType::bf16});
  return list;
}

}  // namespace

void add_activation_cases(std::vector<Case>& cases) {
  for (const Block& s : activation_shapes())  // exp and tanh within 4 u, a few products
    cases.push_back(case_of(&Table::activation, s, tolerance(s.type, 8), activation_args));
  // As above; 1 - tanh^2 cancels where its factor is 9, times a gate of up to 4.
  for (const Block& s : activation_shapes())
    cases.push_back(
        case_of(&Table::activation_backward, s, tolerance(s.type, 64), activation_backward_args));
}

}  // namespace megatron::kernels
