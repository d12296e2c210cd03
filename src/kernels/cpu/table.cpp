#include "kernels/cpu/table.h"

#include "kernels/cpu/kernels.h"
#include "kernels/for_each_kernel.h"

namespace megatron::kernels {

const Table& cpu_table() {
#define MEGATRON_ENTRY(name, Args) .name = checked<&Table::name, Args, cpu::name>,
  static const Table table = {MEGATRON_KERNELS(MEGATRON_ENTRY)};
#undef MEGATRON_ENTRY
  return table;
}

}  // namespace megatron::kernels
