// Which layers something holds for, as Megatron-LM's flags say it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::models {

// Lists of whole numbers, added (+) and repeated (*): "[1,0]*2+[1]", "([0]*3+[1]*5)". Throws Error naming the
// flag, the text and the place where it does not follow this form, or where it gives more than `most` numbers.
std::vector<int64_t> parse_layer_list(std::string_view flag, std::string_view text, int64_t most);

// A whole number N (every N-th layer is `every_nth`, counted from 1, the others are not), or a list with a number
// for each layer (1: `true`). Throws Error naming the flag and what does not fit.
std::vector<bool> layer_pattern(std::string_view flag, const std::string& text, int64_t layers,
                                bool every_nth);

}  // namespace megatron::models
