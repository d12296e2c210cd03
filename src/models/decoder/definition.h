// Makes a Model of a decoder's value and its family.
#pragma once

#include "models/decoder/value.h"
#include "models/families/family.h"
#include "models/model.h"

namespace megatron::models {

// Throws Error as DecoderValue::check() does.
Model decoder_model(const DecoderValue& value, const DecoderFamily& family,
                    ConfigForm form = ConfigForm::transformers_5,
                    std::shared_ptr<const LoraConfig> adapter = nullptr,
                    const std::optional<LowPrecisionLayers>& low_precision = std::nullopt);
// A model of the family that family_for() finds.
Model decoder_model(const DecoderValue& value);

}  // namespace megatron::models
