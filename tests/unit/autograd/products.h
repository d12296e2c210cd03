// An op for the tests of the tape, y = x w^T, and their shared helpers.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "autograd/tape.h"
#include "base/philox.h"

namespace megatron {

inline constexpr int64_t kRows = 5, kWidth = 4;

inline void product_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const Tensor& dy = backward.gradient(0);
  Tensor dx = backward.empty(dy.shape(), dy.dtype(), "dx");
  backward.kernels().gemm({.a = dy, .b = backward.weight(0).value(), .out = dx}, backward.stream());
  backward.set(0, dx);
}

inline void product_wgrad(Backward& backward) {
  const GradSlot slot = backward.grad_slot(0);
  if (!slot.out.defined()) return;
  backward.kernels().gemm({.a = backward.gradient(0),
                           .b = backward.saved(0),
                           .out = slot.out,
                           .transpose_a = true,
                           .beta = slot.beta},
                          backward.stream());
}

inline Var product(Tape& tape, const Var& x, const Weight& w) {
  Tensor y = tape.empty(x.value.shape(), x.value.dtype(), "y");
  tape.kernels().gemm({.a = x.value, .b = w.value(), .out = y, .transpose_b = true}, tape.stream());
  return tape.record_one({.name = "product",
                          .inputs = {x.id},
                          .saved = {x.value},
                          .weights = {w},
                          .dgrad = product_dgrad,
                          .wgrad = product_wgrad},
                         y);
}

class TapeTest : public ::testing::Test {
 protected:
  TapeTest() : runtime({DeviceKind::reference, 0}, 1) {}

  Tensor drawn(const Shape& shape, const std::string& name, double factor = 1,
               MemoryClass memory_class = MemoryClass::activations) {
    Tensor t = Tensor::empty(runtime.arena(memory_class), shape, DType::f64, "test");
    std::vector<double> values;
    const RandomStream stream(1, name);
    for (int64_t i = 0; i < shape.elements(); ++i)
      values.push_back(factor * stream.normal(static_cast<uint64_t>(i)));
    copy_from(t, std::span<const double>(values));
    return t;
  }
  Parameter parameter(const std::string& name, int uses = 1) {
    Parameter p{.name = name, .value = drawn({kWidth, kWidth}, name, 0.5, MemoryClass::parameters)};
    p.uses.resize(static_cast<size_t>(uses));
    for (Parameter::Use& use : p.uses) use.grad = drawn({kWidth, kWidth}, "nothing that matters");
    return p;
  }
  static std::vector<double> gradient(const Parameter& p, size_t use = 0) {
    return to_doubles(p.uses[use].grad);
  }

  Runtime runtime;
};

// Events that a listener received, as text.
struct Log final : GradientListener, SpanListener {
  std::vector<std::string> lines;
  void gradient_final(Parameter& p, int micro_batch) override {
    lines.push_back(p.name + " " + std::to_string(micro_batch));
  }
  void enter(const Span& span, Pass pass) override {
    lines.push_back("enter " + span.name + " " + text(pass));
  }
  void leave(const Span& span, Pass pass) override {
    lines.push_back("leave " + span.name + " " + text(pass));
  }
  static std::string text(Pass pass) {
    return pass == Pass::forward ? "forward" : pass == Pass::backward ? "backward" : "recompute";
  }
};

}  // namespace megatron
