#include "kernels/table.h"

#include "base/error.h"
#include "kernels/cpu/table.h"
#include "kernels/meta/table.h"
#include "kernels/reference/table.h"

namespace megatron::kernels {

const Table& table(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::reference: return reference_table();
    case DeviceKind::cpu: return cpu_table();
    case DeviceKind::meta: return meta_table();
    case DeviceKind::cuda: fail("this build has no CUDA back-end; use --device cpu");
  }
  MG_ASSERT(false);
}

}  // namespace megatron::kernels
