// Megatron-LM's ways to describe a model of different layers: a letter for each
// (--hybrid-layer-pattern), shares of them, and the name of its code (--spec).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace megatron::models {

// The letters of the layers: M (state space), * (attention), + (multi-latent attention), - (MLP), E
// (experts). Throws Error naming a letter that is not supported.
std::string hybrid_letters(std::string_view pattern);

// As --pipeline-model-parallel-layout, where bars (|) divide the layers among pipeline stages;
// empty: there are no bars.
std::string hybrid_layout(std::string_view pattern);

// The letters of this many layers, of which the given shares, rounded, are attention and MLPs: both
// evenly spaced, the MLPs among the layers that are left, as Megatron-LM placed them.
std::string allocated_layers(int64_t layers, double attention_ratio, double mlp_ratio);

// True if these words of --spec name Megatron-LM's code of hybrid models, false if there are none
// or they name that of its other models. Throws Error for any others.
bool names_hybrid_stack(const std::vector<std::string>& spec);

}  // namespace megatron::models
