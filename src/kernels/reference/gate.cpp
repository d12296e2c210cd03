#include <cmath>

#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"

namespace megatron::kernels::reference {
namespace {

template <class C>
C sigmoid(C x) {
  return 1 / (1 + std::exp(-x));
}

template <class C>
void gate_typed(const GateArgs& args) {
  const std::vector<C> gate = load<C>(args.gate);
  std::vector<C> values = load<C>(args.x);
  for (size_t i = 0; i < values.size(); ++i) values[i] *= sigmoid(gate[i]);
  store(args.out, values);
}

template <class C>
void gate_backward_typed(const GateBackwardArgs& args) {
  const std::vector<C> x = load<C>(args.x);
  std::vector<C> gate = load<C>(args.gate), dx = load<C>(args.dout);
  for (size_t i = 0; i < x.size(); ++i) {
    const C s = sigmoid(gate[i]);
    gate[i] = dx[i] * x[i] * s * (1 - s);
    dx[i] *= s;
  }
  store(args.dx, dx);
  store(args.dgate, gate);
}

}  // namespace

void gate(const GateArgs& args, Stream&) {
  check(args);
  args.x.dtype() == DType::f64 ? gate_typed<double>(args) : gate_typed<float>(args);
}

void gate_backward(const GateBackwardArgs& args, Stream&) {
  check(args);
  args.x.dtype() == DType::f64 ? gate_backward_typed<double>(args)
                               : gate_backward_typed<float>(args);
}

}  // namespace megatron::kernels::reference
