// Our parameters as Hugging Face's tensors.
#pragma once

#include <string>

#include "models/gpt/config.h"
#include "parallel/placement.h"

namespace megatron::models {

// The placement of a parameter of GptModel by its name. Learned positions: gpt2's names, matrices
// stored [in, out]; rotary: llama's.
parallel::Placement placement_of(const GptConfig& config, const std::string& name,
                                 const Shape& shape);

}  // namespace megatron::models
