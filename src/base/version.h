#pragma once

#include <string_view>

namespace megatron {

// Version of this program, e.g. "0.1.0".
std::string_view version();

}  // namespace megatron
