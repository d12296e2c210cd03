// Parses Megatron-LM's notations for a selection of layers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::models {

// Parses a whole number N (every N-th layer, counted from 1, gets `every_nth`, the others its
// opposite), or lists, joined (+) and repeated (*), with a number for each layer (1: `true`):
// "[1,0]*2+[1]", "([0]*3+[1]*5)". Throws Error naming the flag, the text and the position or number
// that does not fit.
std::vector<bool> layer_pattern(std::string_view flag, const std::string& text, int64_t layers,
                                bool every_nth);

}  // namespace megatron::models
