// How the products of a model's modules are quantized.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "models/model.h"

namespace megatron::models {

// "e4m3, gradients in e5m2, mxfp8 scales".
std::string formats_text(const LowPrecisionFormats& f);

// Number of layers of a model, and how many of them, at its beginning, are an encoder's.
struct LayerCounts {
  int64_t layers = 0, encoder = 0;
};
LayerCounts layer_counts(const ModelFacts& facts);

// The name that Megatron-LM has for the module of a layer's weight:
// "decoder.layers.0.mlp.linear_fc1" for "layers.0.mlp.up.weight"; "" if it has none. There, the
// layers of the encoder and of the decoder are each counted from 0.
std::string megatron_module(std::string_view weight, const LayerCounts& counts);

// Returns true if the rule's pattern matches the module of a weight: its name here
// ("layers.0.mlp.up"), or the one that Megatron-LM has for it.
bool fits(const PrecisionRule& rule, std::string_view weight, const LayerCounts& counts);

// How the products with a weight of a layer are quantized; nothing: not at all.
std::optional<LowPrecisionFormats> formats_of(const LowPrecisionLayers& low, int64_t layer,
                                              const LayerCounts& counts, std::string_view weight);

// The weights of a model whose products can be quantized, and how they are.
std::map<std::string, std::optional<LowPrecisionFormats>> module_precision(const Model& model);

}  // namespace megatron::models
