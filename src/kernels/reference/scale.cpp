#include <cmath>

#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"

namespace megatron::kernels::reference {
namespace {

template <class C>
void scale_typed(const ScaleArgs& args) {
  std::vector<C> values = load<C>(args.x);
  for (C& value : values) value *= static_cast<C>(args.factor);
  store(args.out, values);
}

template <class C>
void cap_typed(const SoftCapArgs& args) {
  const C cap = static_cast<C>(args.cap);
  std::vector<C> values = load<C>(args.x);
  for (C& value : values) value = cap * std::tanh(value / cap);
  store(args.out, values);
}

template <class C>
void cap_backward_typed(const SoftCapBackwardArgs& args) {
  const C cap = static_cast<C>(args.cap);
  const std::vector<C> out = load<C>(args.out);
  std::vector<C> dx = load<C>(args.dout);
  for (size_t i = 0; i < dx.size(); ++i) dx[i] *= 1 - out[i] / cap * (out[i] / cap);
  store(args.dx, dx);
}

}  // namespace

void scale(const ScaleArgs& args, Stream&) {
  check(args);
  args.x.dtype() == DType::f64 ? scale_typed<double>(args) : scale_typed<float>(args);
}

void soft_cap(const SoftCapArgs& args, Stream&) {
  check(args);
  args.x.dtype() == DType::f64 ? cap_typed<double>(args) : cap_typed<float>(args);
}

void soft_cap_backward(const SoftCapBackwardArgs& args, Stream&) {
  check(args);
  args.dout.dtype() == DType::f64 ? cap_backward_typed<double>(args)
                                  : cap_backward_typed<float>(args);
}

}  // namespace megatron::kernels::reference
