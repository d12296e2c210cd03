// Parses Megatron-LM's notation for a model of different layers (--hybrid-layer-pattern).
#pragma once

#include <string>
#include <string_view>

namespace megatron::models {

// The letters of the layers: M (state space), * (attention), + (multi-latent attention), - (MLP), E
// (experts). Throws Error naming a letter that is not supported.
std::string hybrid_letters(std::string_view pattern);

// As --pipeline-model-parallel-layout, where bars (|) divide the layers among pipeline stages;
// empty: there are no bars.
std::string hybrid_layout(std::string_view pattern);

}  // namespace megatron::models
