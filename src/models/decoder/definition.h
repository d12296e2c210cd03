// A decoder with its family: what the rest of the program knows as a Model.
#pragma once

#include "models/decoder/value.h"
#include "models/families/family.h"
#include "models/model.h"

namespace megatron::models {

// Throws Error as DecoderValue::check() does.
Model decoder_model(const DecoderValue& value, const DecoderFamily& family,
                    ConfigForm form = ConfigForm::transformers_5);
// Of the family that family_for() finds.
Model decoder_model(const DecoderValue& value);

}  // namespace megatron::models
