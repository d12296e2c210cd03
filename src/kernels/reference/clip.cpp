#include <algorithm>

#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"

namespace megatron::kernels::reference {
namespace {

template <class C>
void clip_typed(const ClipArgs& args) {
  const C limit = static_cast<C>(args.limit);
  std::vector<C> values = load<C>(args.x);
  for (C& value : values) value = std::clamp(value, -limit, limit);
  store(args.out, values);
}

template <class C>
void clip_backward_typed(const ClipBackwardArgs& args) {
  const C limit = static_cast<C>(args.limit);
  const std::vector<C> x = load<C>(args.x);
  std::vector<C> gradient = load<C>(args.dout);
  for (size_t i = 0; i < x.size(); ++i)
    if (!(x[i] >= -limit && x[i] <= limit)) gradient[i] = 0;
  store(args.dx, gradient);
}

}  // namespace

void clip(const ClipArgs& args, Stream&) {
  check(args);
  args.x.dtype() == DType::f64 ? clip_typed<double>(args) : clip_typed<float>(args);
}

void clip_backward(const ClipBackwardArgs& args, Stream&) {
  check(args);
  args.x.dtype() == DType::f64 ? clip_backward_typed<double>(args)
                               : clip_backward_typed<float>(args);
}

}  // namespace megatron::kernels::reference
