#pragma once

#include "models/decoder/value.h"
#include "models/families/family.h"
#include "models/upcycling.h"

namespace megatron::models {

// ModelDefinition::upcycled() of a decoder.
UpcycledModel upcycled_decoder(const DecoderValue& dense, const DecoderFamily& family,
                               ConfigForm form, const UpcyclingFlags& flags);

}  // namespace megatron::models
