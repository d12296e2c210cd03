#include "comm/launch/text_queue.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "base/files.h"

namespace megatron::comm::launch {

void TextQueue::write_some() {
  constexpr size_t kErase = size_t{1} << 20;
  const size_t size = std::min<size_t>(waiting(), PIPE_BUF);
  const ssize_t n = ::write(file_, text_.data() + written_, size);
  MG_CHECK(n >= 0 || errno == EINTR || errno == EAGAIN, "the output cannot be written: {}",
           write_failure(errno));
  if (n > 0) written_ += static_cast<size_t>(n);
  if (waiting() == 0 || written_ >= kErase) {
    text_.erase(0, written_);
    written_ = 0;
  }
}

}  // namespace megatron::comm::launch
