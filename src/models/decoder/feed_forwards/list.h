// The kinds of feed-forwards, by the types of their configurations. Each has a file of its own that
// specializes LayerPart (models/decoder/layer_part.h).
#pragma once

#include <variant>

#include "models/decoder/simple_parts.h"
#include "nn/mlp.h"
#include "nn/moe.h"

namespace megatron::models {

using FeedForwardValue = std::variant<nn::MlpConfig, LinearConfig, NoOp, nn::MoeConfig>;

}  // namespace megatron::models
