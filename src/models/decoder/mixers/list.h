// The kinds of mixers, by the types of their configurations. Each has a file of its own that
// specializes LayerPart (models/decoder/layer_part.h).
#pragma once

#include <variant>

#include "models/decoder/simple_parts.h"
#include "nn/attention.h"
#include "nn/latent_attention.h"

namespace megatron::models {

using MixerValue = std::variant<nn::AttentionConfig, nn::LatentAttentionConfig, LinearConfig, NoOp>;

}  // namespace megatron::models
