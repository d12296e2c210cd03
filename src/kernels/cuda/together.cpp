#include "kernels/cuda/together.h"

extern "C" __attribute__((visibility("default"))) const megatron::kernels::TogetherTable*
megatron_cuda_together() {
  namespace cuda = megatron::kernels::cuda;
  static const megatron::kernels::TogetherTable table = {
      .adam = cuda::adam_together,
      .sgd = cuda::sgd_together,
      .lion = cuda::lion_together,
      .copy = cuda::copy_together,
      .sum_of_squares = cuda::sum_of_squares_together,
  };
  return &table;
}
