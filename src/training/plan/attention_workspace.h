// How much scratch memory a part of cuDNN's attention backward may take, where a run on a GPU does not
// say it (--attention-workspace-mib): the larger of two sizes if the run's plan then fits the GPU.
#pragma once

#include "base/function_ref.h"
#include "plan/plan.h"
#include "settings/settings.h"

namespace megatron::training {

// The plan of the run by `plan_of`. Of a run on CUDA in bf16 or fp16 without the flag the size, and
// its reason, are written to settled.runtime.
plan::Plan with_attention_workspace(
    settings::TrainSettings& settled,
    FunctionRef<plan::Plan(const settings::TrainSettings&)> plan_of);

}  // namespace megatron::training
