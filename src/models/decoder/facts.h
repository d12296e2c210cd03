// Facts about a decoder for the rest of the program.
#pragma once

#include "models/decoder/value.h"
#include "models/facts.h"

namespace megatron::models {

ModelFacts facts_of(const DecoderValue& value, std::string_view family);

}  // namespace megatron::models
