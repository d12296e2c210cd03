// Chooses the scratch memory for part of cuDNN's attention backward if a run on a GPU does not set
// it (--attention-workspace-mib): the larger of two sizes if the run's plan then fits the GPU.
#pragma once

#include "base/function_ref.h"
#include "plan/plan.h"
#include "settings/settings.h"

namespace megatron::training {

// Plans the run with `plan_of`. For a run on CUDA in bf16 or fp16 without the flag, writes the size
// and its reason to settled.runtime.
plan::Plan with_attention_workspace(
    settings::TrainSettings& settled,
    FunctionRef<plan::Plan(const settings::TrainSettings&)> plan_of);

}  // namespace megatron::training
