#include "base/lfs_pointer.h"

#include "base/error.h"

namespace megatron {

void refuse_lfs_pointer(std::string_view content, const std::string& path) {
  MG_CHECK(
      !content.starts_with("version https://git-lfs.github.com/spec/"),
      "'{}' is a Git LFS pointer, not the file itself; run git lfs pull where it was cloned, or "
      "download the file",
      path);
}

}  // namespace megatron
