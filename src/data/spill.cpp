#include "data/spill.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/files.h"

namespace megatron::data {
namespace {

constexpr size_t kPartBytes = 1 << 20;

int open_nameless(const std::string& folder) {
  const int file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0) return file;
  std::string name = folder + "/.megatron-XXXXXX";  // not every file system supports unnamed files
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

}  // namespace

SpilledBytes::SpilledBytes(std::string folder) : folder_(std::move(folder)) {}

SpilledBytes::~SpilledBytes() {
  if (file_ >= 0) ::close(file_);
}

SpilledBytes::SpilledBytes(SpilledBytes&& other) noexcept
    : folder_(std::move(other.folder_)),
      file_(std::exchange(other.file_, -1)),
      spilled_(std::exchange(other.spilled_, 0)),
      buffer_(std::move(other.buffer_)) {}

void SpilledBytes::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (buffer_.size() == kPartBytes) flush();
    const size_t n = std::min(bytes.size(), kPartBytes - buffer_.size());
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(n));
    bytes = bytes.subspan(n);
  }
}

void SpilledBytes::flush() {
  if (file_ < 0) {
    file_ = open_nameless(folder_);
    MG_CHECK(file_ >= 0, "cannot write a temporary file in '{}': {}", folder_,
             write_failure(errno));
  }
  for (size_t done = 0; done < buffer_.size();) {
    const ssize_t n = ::write(file_, buffer_.data() + done, buffer_.size() - done);
    if (n < 0 && errno == EINTR) continue;
    MG_CHECK(n >= 0, "cannot write a temporary file in '{}': {}", folder_, write_failure(errno));
    done += static_cast<size_t>(n);
  }
  spilled_ += static_cast<int64_t>(buffer_.size());
  buffer_.clear();
}

void SpilledBytes::for_each(FunctionRef<void(std::span<const std::byte>)> use) const {
  std::vector<std::byte> part;
  for (int64_t at = 0; at < spilled_; at += static_cast<int64_t>(kPartBytes)) {
    part.resize(kPartBytes);
    for (size_t done = 0; done < part.size();) {
      const ssize_t n =
          ::pread(file_, part.data() + done, part.size() - done, at + static_cast<int64_t>(done));
      if (n < 0 && errno == EINTR) continue;
      MG_CHECK(n > 0, "cannot read a temporary file in '{}': {}", folder_,
               n == 0 ? "it is truncated" : std::strerror(errno));
      done += static_cast<size_t>(n);
    }
    use(part);
  }
  if (!buffer_.empty()) use(buffer_);
}

}  // namespace megatron::data
