// Any decoder once more, by plain loops in fp64 over the tensors as they lie on disk: what the composition
// is checked against. Shares no code with it, its ops or kernels but the map of tensors.
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
