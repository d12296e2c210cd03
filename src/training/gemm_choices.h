// The algorithms that a run's GEMMs take on CUDA (--gemm-tuning), as its checkpoints keep them:
// {"device": "NVIDIA H200", "library": "cuBLASLt 130100", "products": {"<product>": "<words in hex>"}}.
#pragma once

#include "base/json.h"
#include "device/stream.h"
#include "resume/resume.h"
#include "settings/runtime_settings.h"

namespace megatron::training {

// Before the first product. Choices of the checkpoint that the run begins with are used; where they
// cannot be, a warning says that results may differ in their last bits from those of a run that was
// not interrupted. Throws Error for choices that are damaged.
void begin_gemm_tuning(const settings::RuntimeSettings& settings,
                       const resume::Beginning& beginning, Runtime& runtime);

// Null where the run does not tune.
Json gemm_choices(const settings::RuntimeSettings& settings, Runtime& runtime);

}  // namespace megatron::training
