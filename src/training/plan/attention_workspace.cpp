#include "training/plan/attention_workspace.h"

#include "base/progress.h"

namespace megatron::training {

plan::Plan with_attention_workspace(
    settings::TrainSettings& settled,
    FunctionRef<plan::Plan(const settings::TrainSettings&)> plan_of) {
  using settings::kAttentionMib, settings::kLargeAttentionMib;
  settings::RuntimeSettings& runtime = settled.runtime;
  const bool chooses = !runtime.attention_workspace_mib &&
                       runtime.device_kind() == DeviceKind::cuda &&
                       settled.precision.type() != DType::f32;
  if (!chooses) return plan_of(settled);
  runtime.planned_attention_mib = kLargeAttentionMib;
  plan::Plan large = plan_of(settled);
  const auto spare = static_cast<double>(large.gpu->bytes - large.gpu_bytes());
  if (spare >= 0) {
    runtime.planned_attention_cause =
        fmt::format("the GPU's memory allows it: {} remain free", format_bytes(spare));
    return large;
  }
  runtime.planned_attention_mib = kAttentionMib;
  runtime.planned_attention_cause =
      fmt::format("with {} the run would need {} more than the GPU has", kLargeAttentionMib,
                  format_bytes(-spare));
  return plan_of(settled);
}

}  // namespace megatron::training
