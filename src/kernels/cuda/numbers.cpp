#include "kernels/cuda/numbers.h"

#include "base/error.h"

namespace megatron::kernels::cuda {

void refuse_type(const char* kernel, DType type) {
  fail(
      "{}: the cuda back-end supports f32, bf16 and f16, not {}; use --device reference for "
      "other types",
      kernel, name(type));
}

}  // namespace megatron::kernels::cuda
