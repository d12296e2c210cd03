// Rotary positions in config.json, in both forms: rope_parameters, or rope_theta and rope_scaling. As in transformers,
// rope_scaling counts where both blocks are there, unless it is empty.
#pragma once

#include <string>

#include "base/json.h"
#include "nn/rotary.h"

namespace megatron::models {

// partial: the family rotates partial_rotary_factor of each head. Another family whose file has a factor other than 1
// ignores it without scaling, as transformers does, and is refused with it: no version of transformers runs that.
nn::RotaryConfig read_rotary(const Json& config, bool partial = false);
// The same of one block, which error messages call `name`.
nn::RotaryConfig read_rotary_block(const Json& config, const Json& block, const std::string& name,
                                   bool partial = false);
// rope_parameters.
Json write_rotary(const nn::RotaryConfig& rotary, bool partial = false);

}  // namespace megatron::models
