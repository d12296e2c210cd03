#include "data/bin_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace megatron::data {

BinFile::BinFile(std::string path, bool map) : path_(std::move(path)) {
  if (map) {
    map_.emplace(path_);
    size_ = static_cast<int64_t>(map_->bytes().size());
    return;
  }
  // Opening a pipe must not block.
  file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  MG_CHECK(file_ >= 0, "cannot open '{}': {}", path_, std::strerror(errno));
  struct stat status{};
  const bool regular = ::fstat(file_, &status) == 0 && S_ISREG(status.st_mode);
  if (!regular) {
    ::close(file_);
    fail("cannot read '{}': it is not a regular file", path_);
  }
  size_ = status.st_size;
}

BinFile::~BinFile() {
  if (file_ >= 0) ::close(file_);
}

std::span<const std::byte> BinFile::bytes() const {
  MG_ASSERT(map_.has_value());
  return map_->bytes();
}

void BinFile::read(int64_t offset, std::span<std::byte> out) const {
  constexpr size_t kLargestTransfer = 1 << 30;
  MG_ASSERT(offset >= 0 && offset <= size_ && static_cast<int64_t>(out.size()) <= size_ - offset);
  if (map_) {
    const auto from = map_->bytes().subspan(static_cast<size_t>(offset), out.size());
    std::copy(from.begin(), from.end(), out.begin());
    return;
  }
  while (!out.empty()) {
    const ssize_t n = ::pread(file_, out.data(), std::min(out.size(), kLargestTransfer), offset);
    if (n < 0 && errno == EINTR) continue;
    MG_CHECK(n >= 0, "cannot read '{}' at byte {}: {}", path_, offset, std::strerror(errno));
    MG_CHECK(n > 0, "'{}' ends at byte {}; it had {} bytes when it was opened", path_, offset,
             size_);
    offset += n;
    out = out.subspan(static_cast<size_t>(n));
  }
}

}  // namespace megatron::data
