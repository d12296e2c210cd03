// The kinds of mixers, by the types of their configurations. Each has a file of its own that
// specializes LayerPart (models/decoder/layer_part.h).
#pragma once

#include <variant>

#include "models/decoder/hybrid_parts.h"
#include "models/decoder/simple_parts.h"
#include "nn/attention.h"
#include "nn/latent_attention.h"
#include "nn/state_space.h"

namespace megatron::models {

using MixerValue =
    std::variant<nn::AttentionConfig, nn::LatentAttentionConfig, nn::StateSpaceConfig, HybridConfig,
                 SharedBlockConfig, LinearConfig, NoOp>;

}  // namespace megatron::models
