#include "kernels/cuda/chunk.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/numbers.h"

namespace megatron::kernels::cuda {
namespace {

template <class T>
struct Errors {
  const T* x;
  const float *targets, *weights;
  float* loss;
  T* dx;
};

template <class T>
__global__ void __launch_bounds__(kThreads) squared_errors(uint32_t count, Errors<T> all) {
  const uint32_t t = blockIdx.x * kThreads + threadIdx.x;
  if (t >= count) return;
  const float weight = all.weights[t], error = to_float(all.x[t]) - all.targets[t];
  const bool counts = weight != 0;
  all.loss[t] = counts ? error * error : 0.0f;
  if (all.dx != nullptr) all.dx[t] = from_float<T>(counts ? 2 * weight * error : 0.0f);
}

}  // namespace

void squared_error(const SquaredErrorArgs& args, Stream& stream) {
  check(args);
  if (args.x.elements() == 0) return;
  for_storage_type("squared_error", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const Errors<T> all{
        static_cast<const T*>(args.x.address()), static_cast<const float*>(args.targets.address()),
        static_cast<const float*>(args.weights.address()), static_cast<float*>(args.loss.address()),
        args.dx.defined() ? static_cast<T*>(args.dx.address()) : nullptr};
    const uint32_t count = count_items("squared_error", args.x.elements());
    launch("squared_error", squared_errors<T>, grid_for(count), stream, count, all);
  });
}

}  // namespace megatron::kernels::cuda
