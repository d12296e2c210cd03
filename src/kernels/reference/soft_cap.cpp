#include <cmath>

#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"

namespace megatron::kernels::reference {
namespace {

template <class C>
void soft_cap_typed(const SoftCapArgs& args) {
  const C cap = static_cast<C>(args.cap);
  std::vector<C> values = load<C>(args.x);
  for (C& value : values) value = cap * std::tanh(value / cap);
  store(args.out, values);
}

template <class C>
void soft_cap_backward_typed(const SoftCapBackwardArgs& args) {
  const C cap = static_cast<C>(args.cap);
  const std::vector<C> out = load<C>(args.out);
  std::vector<C> gradient = load<C>(args.dout);
  for (size_t i = 0; i < out.size(); ++i) {
    const C tanh = out[i] / cap;
    gradient[i] *= 1 - tanh * tanh;
  }
  store(args.dx, gradient);
}

}  // namespace

void soft_cap(const SoftCapArgs& args, Stream&) {
  check(args);
  args.x.dtype() == DType::f64 ? soft_cap_typed<double>(args) : soft_cap_typed<float>(args);
}

void soft_cap_backward(const SoftCapBackwardArgs& args, Stream&) {
  check(args);
  args.dout.dtype() == DType::f64 ? soft_cap_backward_typed<double>(args)
                                  : soft_cap_backward_typed<float>(args);
}

}  // namespace megatron::kernels::reference
