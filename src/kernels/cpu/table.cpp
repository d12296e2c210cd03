#include "kernels/cpu/table.h"

#include "kernels/cpu/kernels.h"

namespace megatron::kernels {

const Table& cpu_table() {
#define MEGATRON_ENTRY(name, Args) .name = cpu::name,
  static const Table table = {MEGATRON_KERNELS(MEGATRON_ENTRY)};
#undef MEGATRON_ENTRY
  return table;
}

}  // namespace megatron::kernels
