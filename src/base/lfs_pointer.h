// Pointers that Git LFS leaves in place of large files that were not downloaded.
#pragma once

#include <string>
#include <string_view>

namespace megatron {

// Throws Error naming `path` if its content is such a pointer.
void refuse_lfs_pointer(std::string_view content, const std::string& path);

}  // namespace megatron
