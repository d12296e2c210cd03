#include "server/http/connection.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace megatron::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int64_t kHeaderBytes = 64 << 10;
constexpr int64_t kFramingBytes = 64 << 10;  // overhead allowed for a chunked body
constexpr milliseconds kTick{100}, kLinger{500}, kGrace{500};

steady_clock::time_point after(double seconds) {
  return steady_clock::now() +
         std::chrono::duration_cast<steady_clock::duration>(std::chrono::duration<double>(seconds));
}

void name_of(const sockaddr_storage& address, socklen_t length, std::string& ip, int& port) {
  char host[NI_MAXHOST] = "", service[NI_MAXSERV] = "0";
  const auto* any = reinterpret_cast<const sockaddr*>(&address);
  if (getnameinfo(any, length, host, sizeof host, service, sizeof service,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return;
  ip = host;
  port = std::atoi(service);
}

}  // namespace

Connection::Connection(int socket, const HttpLimits& limits, const std::atomic<bool>& stopping)
    : socket_(socket), limits_(limits), stopping_(stopping) {
  const int on = 1;
  setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Connection::~Connection() {
  finish();
  close(socket_);
}

// Closing a socket with unread bytes may discard the reply, so the bytes are read for a moment.
void Connection::finish() const {
  shutdown(socket_, SHUT_WR);
  if (!closes_) return;
  std::array<char, 65536> rest;
  const Time until = steady_clock::now() + kLinger;
  while (wait(POLLIN, until) && recv(socket_, rest.data(), rest.size(), MSG_DONTWAIT) > 0) continue;
}

// During shutdown, slow clients are not waited for.
bool Connection::wait(short events, Time until) const {
  const Time begin = steady_clock::now();
  while (true) {
    const Time now = steady_clock::now();
    if (now >= until || (stopping_ && now >= begin + kGrace)) return false;
    const milliseconds left = std::min(std::chrono::ceil<milliseconds>(until - now), kTick);
    pollfd poll_socket{socket_, events, 0};
    const int n = poll(&poll_socket, 1, static_cast<int>(left.count()));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return false;
  }
}

bool Connection::wait_for_request() {
  const Time until = after(limits_.idle_seconds);
  while (begin_ == end_) {
    if (stopping_) return false;
    if (wait(POLLIN, std::min(until, steady_clock::now() + kTick))) break;
    if (steady_clock::now() >= until) return false;
  }
  deadline_ = after(limits_.header_seconds);
  budget_ = kHeaderBytes;
  in_body_ = false;
  return true;
}

void Connection::begin_body() {
  deadline_ = after(limits_.body_seconds);
  budget_ = limits_.body_bytes + kFramingBytes;
  in_body_ = true;
}

bool Connection::peer_gone() const {
  char byte = 0;
  pollfd poll_socket{socket_, POLLIN | POLLRDHUP, 0};
  if (poll(&poll_socket, 1, 0) <= 0) return false;
  if ((poll_socket.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) return true;
  const ssize_t n = recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

ssize_t Connection::fill() {
  if (!wait(POLLIN, deadline_)) {
    trouble_ = 408;
    return -1;
  }
  const ssize_t n = recv(socket_, buffer_.data(), buffer_.size(), 0);
  // A client that sends headers and body apart may wait for the first to be acknowledged.
  const int on = 1;
  setsockopt(socket_, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);
  begin_ = 0;
  end_ = n > 0 ? static_cast<size_t>(n) : 0;
  return n;
}

ssize_t Connection::read(char* bytes, size_t size) {
  if (begin_ == end_) {
    const ssize_t n = fill();
    if (n <= 0) return n;
  }
  if (budget_ <= 0) {
    trouble_ = in_body_ ? 413 : 431;
    return -1;
  }
  const size_t n = std::min({size, end_ - begin_, static_cast<size_t>(budget_)});
  std::memcpy(bytes, buffer_.data() + begin_, n);
  begin_ += n;
  budget_ -= static_cast<int64_t>(n);
  return static_cast<ssize_t>(n);
}

ssize_t Connection::write(const char* bytes, size_t size) {
  if (!wait(POLLOUT, after(limits_.write_seconds))) return -1;
  const ssize_t n = send(socket_, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
  return n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : n;
}

bool Connection::is_readable() const { return begin_ < end_ || wait(POLLIN, deadline_); }

bool Connection::is_writable() const { return !peer_gone(); }

void Connection::get_remote_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getpeername(socket_, reinterpret_cast<sockaddr*>(&address), &length) == 0)
    name_of(address, length, ip, port);
}

void Connection::get_local_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length) == 0)
    name_of(address, length, ip, port);
}

}  // namespace megatron::server
