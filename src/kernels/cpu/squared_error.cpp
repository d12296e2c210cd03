#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"

namespace megatron::kernels::cpu {

void squared_error(const SquaredErrorArgs& args, Stream& stream) {
  check(args);
  for_storage_type("squared_error", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    const auto *targets = args.targets.data<float>(), *weights = args.weights.data<float>();
    auto* loss = args.loss.data<float>();
    T* dx = args.dx.defined() ? args.dx.data<T>() : nullptr;
    for_blocks(stream, args.x.elements(), kBlockElements, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const bool counts = weights[t] != 0;
        const float error = static_cast<float>(x[t]) - targets[t];
        loss[t] = counts ? error * error : 0;
        if (dx != nullptr) dx[t] = static_cast<T>(counts ? 2 * weights[t] * error : 0.0f);
      }
    });
  });
}

}  // namespace megatron::kernels::cpu
