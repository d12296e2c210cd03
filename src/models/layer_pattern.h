// Which layers something holds for, as Megatron-LM's flags say it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::models {

// A whole number N (every N-th layer is `every_nth`, counted from 1, the others are not), or lists, added (+) and
// repeated (*), with a number for each layer (1: `true`): "[1,0]*2+[1]", "([0]*3+[1]*5)". Throws Error naming the flag,
// the text and the place or number that does not fit.
std::vector<bool> layer_pattern(std::string_view flag, const std::string& text, int64_t layers,
                                bool every_nth);

}  // namespace megatron::models
