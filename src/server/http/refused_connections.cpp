#include "server/http/refused_connections.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace megatron::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kForFirstBytes{100}, kForReading{500};

}  // namespace

RefusedConnections::RefusedConnections(Answer answer)
    : answer_(std::move(answer)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  MG_CHECK(wake_ >= 0, "cannot make an eventfd: {}", std::generic_category().message(errno));
  thread_ = std::thread([this] { run(); });
}

RefusedConnections::~RefusedConnections() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  eventfd_write(wake_, 1);
  thread_.join();
  close(wake_);
}

void RefusedConnections::add(int socket) {
  {
    const std::lock_guard lock(mutex_);
    new_.push_back(socket);
  }
  eventfd_write(wake_, 1);
}

void RefusedConnections::run() {
  while (take_new()) {
    while (open_.size() > kMax) {
      close_at_once(open_.front());
      open_.erase(open_.begin());
    }
    wait();
  }
  for (Open& open : open_) close_at_once(open);
}

// Returns false if the thread is to end.
bool RefusedConnections::take_new() {
  const std::lock_guard lock(mutex_);
  for (const int socket : std::exchange(new_, {}))
    open_.push_back({socket, steady_clock::now() + kForFirstBytes});
  return !ends_;
}

// Waits until bytes arrive or a time limit ends, and serves the connections concerned.
void RefusedConnections::wait() {
  std::vector<pollfd> files = {{wake_, POLLIN, 0}};
  int longest = -1;  // milliseconds; -1 waits without a limit
  for (const Open& open : open_) {
    files.push_back({open.socket, POLLIN, 0});
    const auto left = std::chrono::ceil<milliseconds>(open.until - steady_clock::now()).count();
    const int rest = static_cast<int>(std::max<int64_t>(left, 0));
    longest = longest < 0 ? rest : std::min(longest, rest);
  }
  if (poll(files.data(), files.size(), longest) < 0) return;
  eventfd_t ignored = 0;
  eventfd_read(wake_, &ignored);
  size_t file = 1;
  std::erase_if(open_, [&](Open& open) { return !serve(open, files[file++].revents != 0); });
}

// Returns false if the connection is done and closed.
bool RefusedConnections::serve(Open& open, bool readable) {
  ssize_t n = 0;
  if (readable) n = recv(open.socket, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
  const bool late = steady_clock::now() >= open.until;
  if (!open.answered && (readable || late)) {
    answer(open, {buffer_.data(), static_cast<size_t>(std::max<ssize_t>(n, 0))});
    return true;
  }
  if (!late && (!readable || n > 0)) return true;
  close(open.socket);
  return false;
}

// Reads the received bytes first: closing a socket with unread bytes may discard the answer.
void RefusedConnections::close_at_once(Open& open) {
  const ssize_t n = recv(open.socket, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
  if (!open.answered) answer(open, {buffer_.data(), static_cast<size_t>(std::max<ssize_t>(n, 0))});
  close(open.socket);
}

void RefusedConnections::answer(Open& open, std::string_view bytes) const {
  const std::string text = answer_(bytes);
  send(open.socket, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  shutdown(open.socket, SHUT_WR);
  open.answered = true;
  open.until = steady_clock::now() + kForReading;
}

}  // namespace megatron::server
