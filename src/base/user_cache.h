// Where what can be made again is kept between runs of a user.
#pragma once

#include <string>

namespace megatron {

// $XDG_CACHE_HOME/megatron, or $HOME/.cache/megatron, by the XDG base directory specification, which
// takes no relative path. Empty where neither is set. Nothing is created.
std::string user_cache_directory();

}  // namespace megatron
