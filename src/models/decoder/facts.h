// What the rest of the program knows of a decoder.
#pragma once

#include "models/decoder/value.h"
#include "models/facts.h"

namespace megatron::models {

ModelFacts facts_of(const DecoderValue& value, std::string_view family);

}  // namespace megatron::models
