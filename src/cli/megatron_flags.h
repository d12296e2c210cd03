#pragma once

#include <string_view>

namespace megatron::cli {

// A flag (without dashes) that Megatron-LM's command line has, whether or not this program does.
bool is_megatron_flag(std::string_view name);

}  // namespace megatron::cli
