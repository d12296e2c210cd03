// GPT-2 and Llama once more, by plain loops in fp64 over the tensors as they lie on disk: what models
// are checked against. Shares no code with GptModel, its ops or kernels.
#pragma once

#include "models/gpt/config.h"
#include "models/model.h"

namespace megatron::models {

// ModelDefinition::plain_losses().
std::vector<double> plain_losses(const GptConfig& config, const PlainTensors& weights,
                                 std::span<const int32_t> tokens, std::span<const int32_t> labels);

}  // namespace megatron::models
