#include "kernels/reference/table.h"

#include "kernels/for_each_kernel.h"
#include "kernels/reference/kernels.h"

namespace megatron::kernels {

const Table& reference_table() {
#define MEGATRON_ENTRY(name, Args) .name = checked<&Table::name, Args, reference::name>,
  static const Table table = {MEGATRON_KERNELS(MEGATRON_ENTRY)};
#undef MEGATRON_ENTRY
  return table;
}

}  // namespace megatron::kernels
