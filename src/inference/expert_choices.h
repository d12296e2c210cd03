// The experts that tokens were sent to, in the form of answers and files.
#pragma once

#include <cstdint>
#include <span>

#include "base/json.h"
#include "models/facts.h"

namespace megatron::inference {

// Numbers per token in RequestUpdate::expert_choices.
int64_t choices_per_token(const models::ExpertFacts& experts);

// A list for each token of a list for each layer with experts of the token's experts there.
Json expert_choices_json(std::span<const int32_t> choices, const models::ExpertFacts& experts);

}  // namespace megatron::inference
