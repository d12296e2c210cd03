#include <fmt/core.h>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Block {
  Activation function = Activation::gelu_tanh;
  bool gated = false;
  int64_t rows = 1, width = 1;  // of out
  DType type = DType::f32;
  Layout layout;
  bool real = false, large = false;
  double clamp = 0, up_offset = 0;

  double elements() const { return static_cast<double>(rows * width); }
  int64_t in_width() const { return gated ? 2 * width : width; }
  std::string str() const {
    constexpr const char* kNames[] = {"gelu_tanh", "gelu_erf",     "silu",
                                      "relu",      "squared_relu", "quick_gelu"};
    return fmt::format("{}{}{} t={} f={} {}", kNames[static_cast<int>(function)],
                       gated ? " gated" : "", clamp > 0 || up_offset != 0 ? " clamped" : "", rows,
                       width, describe(type, layout));
  }
};

Case forward(const Block& s) {
  return {.kernel = "activation",
          .name = s.str(),
          .dtype = s.type,
          .tolerance = tolerance(s.type, 8),  // exp and tanh within 4 u, and a few products
          .real = s.real,
          .large = s.large,
          .make = [s](Runtime& runtime) {
            Inputs inputs(runtime);
            const ActivationArgs args{
                s.function,
                s.gated,
                inputs.normal("x", {s.rows, s.in_width()}, s.type, 3, s.layout),
                inputs.output("out", {s.rows, s.width}, s.type, s.layout),
                s.clamp,
                s.up_offset};
            return inputs.call(
                [args](Stream& stream, const Table& table) { table.activation(args, stream); });
          }};
}

Case backward(const Block& s) {
  return {.kernel = "activation_backward",
          .name = s.str(),
          .dtype = s.type,
          .tolerance = tolerance(
              s.type,
              64),  // as above; 1 - tanh^2 cancels where its factor is 9, times a gate of up to 4
          .real = s.real,
          .large = s.large,
          .make = [s](Runtime& runtime) {
            Inputs inputs(runtime);
            const ActivationBackwardArgs args{
                s.function,
                s.gated,
                inputs.normal("x", {s.rows, s.in_width()}, s.type, 3, s.layout),
                inputs.normal("dout", {s.rows, s.width}, s.type, 1, s.layout),
                inputs.output("dx", {s.rows, s.in_width()}, s.type, s.layout),
                s.clamp,
                s.up_offset};
            return inputs.call([args](Stream& stream, const Table& table) {
              table.activation_backward(args, stream);
            });
          }};
}

std::vector<Block> activation_shapes() {
  std::vector<Block> list;
  for (const Activation f : {Activation::gelu_tanh, Activation::gelu_erf, Activation::silu,
                             Activation::relu, Activation::squared_relu, Activation::quick_gelu}) {
    for (const bool gated : {false, true}) {
      for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
        list.push_back({f, gated, 1, 1, type});
        list.push_back({f, gated, 7, 33, type, kMisaligned});
        list.push_back({f, gated, 0, 4, type});
        list.push_back({f, gated, 64, 100, type});
      }
    }
  }
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    list.push_back({.function = Activation::quick_gelu,
                    .gated = true,
                    .rows = 9,
                    .width = 50,
                    .type = type,
                    .clamp = 2.5,
                    .up_offset = 1});
    list.push_back({.function = Activation::silu,
                    .gated = true,
                    .rows = 3,
                    .width = 64,
                    .type = type,
                    .clamp = 1});
  }
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    list.push_back({Activation::squared_relu, false, 4096, 3072, type, {}, true});
    list.push_back({Activation::gelu_tanh, false, 4096, 3072, type, {}, true});
    list.push_back({Activation::gelu_erf, false, 4096, 3072, type, {}, true});
    list.push_back({Activation::silu, true, 4096, 3072, type, {}, true});
  }
  list.push_back({Activation::silu, true, 4096, 14336, DType::bf16, {}, true, true});
  return list;
}

}  // namespace

void add_activation_cases(std::vector<Case>& cases) {
  for (const Block& s : activation_shapes()) cases.push_back(forward(s));
  for (const Block& s : activation_shapes()) cases.push_back(backward(s));
}

}  // namespace megatron::kernels
