// Parts of a decoder's ModelDefinition, each in its own file.
#pragma once

#include "models/decoder/value.h"
#include "models/facts.h"
#include "models/families/family.h"
#include "models/model.h"
#include "models/upcycling.h"

namespace megatron::models {

ModelFacts facts_of(const DecoderValue& value, std::string_view family);

// ModelDefinition::upcycled().
UpcycledModel upcycled_decoder(const DecoderValue& dense, const DecoderFamily& family,
                               ConfigForm form, const UpcyclingFlags& flags);

// ModelDefinition::plain_losses(): an independent implementation of any decoder, by plain loops in
// fp64 over the tensors in their layout on disk, against which the composition is checked. It
// shares no code with the composition, its ops or kernels except the map of tensors.
std::vector<double> plain_losses(const DecoderValue& value, const FamilyTensors& map,
                                 const PlainTensors& weights, const PlainText& text,
                                 std::span<const int32_t> labels);

// ModelDefinition::plain_pair_loss() and plain_predictions(), in the same way.
double plain_pair_loss(const DecoderValue& value, const FamilyTensors& map,
                       const PlainTensors& weights, const PlainText& text, int32_t label);
std::vector<PlainPrediction> plain_predictions(const DecoderValue& value, const FamilyTensors& map,
                                               const PlainTensors& weights,
                                               std::span<const int32_t> tokens,
                                               std::span<const int32_t> labels);

}  // namespace megatron::models
