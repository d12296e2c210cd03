// Description of the libraries and kernels that computed the step that a bench timed.
#pragma once

#include <string>

#include "base/json.h"
#include "training/trainer.h"

namespace megatron::bench {

// "attention cuDNN 9.19.0 (64 of 64 calls); epilogues fused 96 of 96; recompute none; CUDA graphs
// none; deterministic". Calls are those of rank 0 in the run's first step.
std::string computed_by(const training::TrainResult& result);
Json computed_by_json(const training::TrainResult& result);

}  // namespace megatron::bench
