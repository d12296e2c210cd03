// Keys of config.json that determine whether a model has certain tensors.
#pragma once

#include <string_view>

#include "base/json.h"
#include "models/model.h"

namespace megatron::models {

// Returns the key that config.json leaves at the family's default, by which the model lacks a
// tensor of that name ("attention_bias"), or "" if there is none.
std::string_view absent_key(const Model& model, const Json& config, std::string_view tensor);

}  // namespace megatron::models
