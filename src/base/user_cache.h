// The user's cache directory, for files that can be made again.
#pragma once

#include <string>

namespace megatron {

// $XDG_CACHE_HOME/megatron, or $HOME/.cache/megatron, by the XDG base directory specification,
// which does not allow relative paths. Empty if neither is set. Creates nothing.
std::string user_cache_directory();

}  // namespace megatron
