#include "kernels/cuda/table.h"

#include "kernels/cuda/kernels.h"
#include "kernels/for_each_kernel.h"

namespace megatron::kernels {

const Table& cuda_table() {
#define MEGATRON_ENTRY(name, Args) .name = checked<&Table::name, Args, cuda::name>,
  static const Table table = {MEGATRON_KERNELS(MEGATRON_ENTRY)};
#undef MEGATRON_ENTRY
  return table;
}

}  // namespace megatron::kernels

extern "C" __attribute__((visibility("default"))) const megatron::kernels::Table*
megatron_cuda_kernels() {
  return &megatron::kernels::cuda_table();
}
