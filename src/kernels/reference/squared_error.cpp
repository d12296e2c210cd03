#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"

namespace megatron::kernels::reference {
namespace {

template <class C>
void squared_error_typed(const SquaredErrorArgs& args) {
  const std::vector<C> x = load<C>(args.x), targets = load<C>(args.targets),
                       weights = load<C>(args.weights);
  std::vector<C> loss(x.size()), dx(x.size());
  for (size_t t = 0; t < x.size(); ++t) {
    if (weights[t] == 0) continue;
    loss[t] = (x[t] - targets[t]) * (x[t] - targets[t]);
    dx[t] = 2 * weights[t] * (x[t] - targets[t]);
  }
  store(args.loss, loss);
  if (args.dx.defined()) store(args.dx, dx);
}

}  // namespace

void squared_error(const SquaredErrorArgs& args, Stream&) {
  check(args);
  args.x.dtype() == DType::f64 ? squared_error_typed<double>(args)
                               : squared_error_typed<float>(args);
}

}  // namespace megatron::kernels::reference
