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

}  // namespace

void scale(const ScaleArgs& args, Stream&) {
  check(args);
  args.x.dtype() == DType::f64 ? scale_typed<double>(args) : scale_typed<float>(args);
}

}  // namespace megatron::kernels::reference
