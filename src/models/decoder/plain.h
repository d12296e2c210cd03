// An independent implementation of any decoder, by plain loops in fp64 over the tensors in their
// layout on disk, against which the composition is checked. It shares no code with the composition,
// its ops or kernels except the map of tensors.
#pragma once

#include "models/decoder/value.h"
#include "models/families/tensor_map.h"
#include "models/model.h"

namespace megatron::models {

// ModelDefinition::plain_losses().
std::vector<double> plain_losses(const DecoderValue& value, const FamilyTensors& map,
                                 const PlainTensors& weights, std::span<const int32_t> tokens,
                                 std::span<const int32_t> labels);

}  // namespace megatron::models
