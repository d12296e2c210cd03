// Element-wise kernels, each written as the formula of its paper.
#include <algorithm>
#include <cmath>

#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"

namespace megatron::kernels::reference {
namespace {

template <class C>
C sigmoid(C x) {
  return 1 / (1 + std::exp(-x));
}

}  // namespace

void scale(const ScaleArgs& args, Stream&) {
  for_each_element(args, [&]<class C>(C x) { return x * static_cast<C>(args.factor); });
}

void soft_cap(const SoftCapArgs& args, Stream&) {
  for_each_element(args, [&]<class C>(C x) {
    const C cap = static_cast<C>(args.cap);
    return cap * std::tanh(x / cap);
  });
}
void soft_cap_backward(const SoftCapBackwardArgs& args, Stream&) {
  for_each_element(args, [&]<class C>(C out, C dout) {
    const C tanh = out / static_cast<C>(args.cap);
    return dout * (1 - tanh * tanh);
  });
}

void clip(const ClipArgs& args, Stream&) {
  for_each_element(args, [&]<class C>(C x) {
    const C limit = static_cast<C>(args.limit);
    return std::clamp(x, -limit, limit);
  });
}
void clip_backward(const ClipBackwardArgs& args, Stream&) {
  for_each_element(args, [&]<class C>(C x, C dout) {
    return std::abs(x) <= static_cast<C>(args.limit) ? dout : 0;
  });
}

void gate(const GateArgs& args, Stream&) {
  for_each_element(args, [](auto x, auto gate) { return x * sigmoid(gate); });
}
void gate_backward(const GateBackwardArgs& args, Stream&) {
  for_each_element(args, []<class C>(C x, C gate, C dout) {
    const C s = sigmoid(gate);
    return std::array<C, 2>{dout * s, dout * x * s * (1 - s)};
  });
}

void squared_error(const SquaredErrorArgs& args, Stream&) {
  for_each_element(args, []<class C>(C x, C target, C weight) {
    const C error = x - target;
    return weight == 0 ? std::array<C, 2>{} : std::array<C, 2>{error * error, 2 * weight * error};
  });
}

}  // namespace megatron::kernels::reference
