// A text as a vector.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/stage.h"

namespace megatron::server {

// The mean over all tokens of what enters the output layer (the final norm's result), divided by
// its length: hidden_size numbers whose squares sum to 1. tokens: at least one, and no more than the
// model has positions.
std::vector<float> embedding(const models::Stage& stage, Runtime& runtime,
                             std::span<const int32_t> tokens);

}  // namespace megatron::server
