// Reads and writes rotary positions in config.json, in both forms: rope_parameters, or rope_theta
// and rope_scaling. If both blocks are there, rope_scaling is used unless it is empty, as in
// transformers.
#pragma once

#include <string>

#include "base/json.h"
#include "nn/rotary.h"

namespace megatron::models {

// partial: the family rotates partial_rotary_factor of each head. Other families ignore a factor
// other than 1 if there is no scaling, as transformers does. With scaling, Error is thrown: no
// version of transformers runs that.
nn::RotaryConfig read_rotary(const Json& config, bool partial = false);
// The same for one block, which error messages call `name`.
nn::RotaryConfig read_rotary_block(const Json& config, const Json& block, const std::string& name,
                                   bool partial = false);
// rope_parameters.
Json write_rotary(const nn::RotaryConfig& rotary, bool partial = false);

}  // namespace megatron::models
