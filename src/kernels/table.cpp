#include "kernels/table.h"

#include "base/error.h"
#include "device/cuda_plugin.h"
#include "kernels/cpu/products/bf16_products.h"
#include "kernels/instruction_set.h"
#include "kernels/reference/table.h"
#include "kernels/widened.h"

namespace megatron::kernels {

const Table& table(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::reference: return reference_table();
    case DeviceKind::cpu: {
      static const Table& own = (require_instructions(), widened_table(kind));
      return own;
    }
    case DeviceKind::meta: return widened_table(kind);
    case DeviceKind::cuda: {
      using Kernels = const Table* (*)();
      static const Table& own = *reinterpret_cast<Kernels>(cuda_symbol("megatron_cuda_kernels"))();
      return own;
    }
  }
  MG_ASSERT(false);
}

std::string_view remark_on_products(DeviceKind kind, DType type) {
  if (kind == DeviceKind::cpu && type == DType::f16)
    return "fp16 is emulated on CPU (computed in fp32 and rounded): it is slower than fp32 and "
           "only useful for studying its numerics";
  if (kind == DeviceKind::cpu && type == DType::bf16) return cpu::remark_on_bf16_products();
  return "";
}

}  // namespace megatron::kernels
