#include "comm/tcp/rendezvous.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text_parts.h"

namespace megatron::comm {
namespace {

constexpr uint32_t kMagic = 0x4d474331;  // "MGC1"
constexpr std::chrono::milliseconds kRetryInterval{50};
constexpr int kAddressSeconds = 10;   // seconds for one address of a name to answer
constexpr double kConnectNotice = 5;  // seconds until the wait is logged
// Bytes of a frame read at a time, so that memory grows with the bytes received.
constexpr size_t kPiece = size_t{64} << 20;

struct Head {
  uint32_t magic = kMagic, kind = 0;
  uint64_t bytes = 0;
};

std::string reason() { return std::system_category().message(errno); }

bool read_all(int file, void* to, size_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t n = ::recv(file, at, bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

void write_all(int file, const void* from, size_t bytes) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t n = ::send(file, at, bytes, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    MG_CHECK(n > 0, "a process of this run has exited: its connection is closed ({})", reason());
    at += n;
    bytes -= static_cast<size_t>(n);
  }
}

void set(int file, int level, int option, int value) {
  ::setsockopt(file, level, option, &value, sizeof value);
}

// Small frames are sent at once, and a host that disappears silently is noticed within a minute.
void prepare(int file) {
  set(file, IPPROTO_TCP, TCP_NODELAY, 1);
  set(file, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(file, IPPROTO_TCP, TCP_KEEPIDLE, 20);
  set(file, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(file, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

void set_patience_of(int file, int option, int seconds) {
  const timeval time{.tv_sec = seconds, .tv_usec = 0};
  ::setsockopt(file, SOL_SOCKET, option, &time, sizeof time);
}

// If nobody listens, the system may connect a local socket to itself, and then nobody can connect.
bool is_its_own_peer(int file) {
  sockaddr_storage here{}, there{};
  socklen_t a = sizeof here, b = sizeof there;
  return ::getsockname(file, reinterpret_cast<sockaddr*>(&here), &a) == 0 &&
         ::getpeername(file, reinterpret_cast<sockaddr*>(&there), &b) == 0 && a == b &&
         std::memcmp(&here, &there, a) == 0;
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};

std::string text_of(const addrinfo& address) {
  std::array<char, NI_MAXHOST> text{};
  ::getnameinfo(address.ai_addr, address.ai_addrlen, text.data(), text.size(), nullptr, 0,
                NI_NUMERICHOST);
  return text.data();
}

// A connected socket, or the reason why there is none.
launch::Descriptor try_to_connect(const RendezvousAddress& place, int seconds, std::string& why) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int code =
      ::getaddrinfo(place.address.c_str(), std::to_string(place.port).c_str(), &hints, &found);
  if (code != 0) {
    why = code == EAI_SYSTEM ? reason() : ::gai_strerror(code);
    return launch::Descriptor();
  }
  const std::unique_ptr<addrinfo, FreeAddresses> list(found);
  why.clear();
  const auto add = [&why, several = found->ai_next != nullptr](const addrinfo& a,
                                                               const std::string& text) {
    why += (why.empty() ? "" : ", ") + (several ? text_of(a) + ": " : "") + text;
  };
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    launch::Descriptor socket(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (socket.open()) set_patience_of(socket.get(), SO_SNDTIMEO, seconds);
    if (!socket.open() || ::connect(socket.get(), a->ai_addr, a->ai_addrlen) != 0) {
      add(*a, errno == EINPROGRESS ? "no answer" : reason());
    } else if (is_its_own_peer(socket.get())) {
      add(*a, "connection refused");
    } else {
      set_patience_of(socket.get(), SO_SNDTIMEO, 0);
      return socket;
    }
  }
  return launch::Descriptor();
}

}  // namespace

RendezvousAddress rendezvous_address(const Variable& variable) {
  const std::string address = variable("MASTER_ADDR").value_or(""),
                    port = variable("MASTER_PORT").value_or("");
  MG_CHECK(!address.empty() && !port.empty(),
           "the environment variables RANK and WORLD_SIZE are set, but {} is not: a launcher such "
           "as torchrun sets MASTER_ADDR, the host of rank 0, and MASTER_PORT, a free port there",
           address.empty() ? "MASTER_ADDR" : "MASTER_PORT");
  RendezvousAddress place;
  const bool brackets = address.size() > 2 && address.front() == '[' && address.back() == ']';
  place.address = brackets ? address.substr(1, address.size() - 2) : address;
  place.port = parse_number<int>(port).value_or(0);
  MG_CHECK(place.port >= 1 && place.port <= 65535,
           "the environment variable MASTER_PORT is '{}', not a port from 1 to 65535", port);
  // torchrun itself listens at the port that it names in that case.
  if (variable("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    place.port += place.port < 65535 ? 1 : -1;
    place.port_by = "next to MASTER_PORT, which torchrun uses itself";
  }
  for (const char* name : {"TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"}) {
    if (const auto id = variable(name); id && !id->empty() && place.run.empty())
      place.run = fmt::format("{} {}", name, *id);
  }
  return place;
}

void Line::send(uint32_t kind, std::string_view bytes) {
  const Head head{.kind = kind, .bytes = bytes.size()};
  write_all(socket_.get(), &head, sizeof head);
  write_all(socket_.get(), bytes.data(), bytes.size());
}

std::optional<Line::Frame> Line::receive(int64_t most) {
  Head head;
  if (!read_all(socket_.get(), &head, sizeof head) || head.magic != kMagic ||
      head.bytes > static_cast<uint64_t>(most))
    return std::nullopt;
  Frame frame{head.kind, {}};
  while (frame.bytes.size() < head.bytes) {
    const size_t at = frame.bytes.size(), more = std::min<size_t>(kPiece, head.bytes - at);
    frame.bytes.resize(at + more);
    if (!read_all(socket_.get(), frame.bytes.data() + at, more)) return std::nullopt;
  }
  return frame;
}

void Line::set_patience(int seconds) { set_patience_of(socket_.get(), SO_RCVTIMEO, seconds); }

void Line::shut() { ::shutdown(socket_.get(), SHUT_RDWR); }

Line connect_to(const RendezvousAddress& place, double seconds) {
  std::string why;
  bool told = false;
  for (const double until = now_seconds() + seconds;;) {
    const int left = std::max(1, static_cast<int>(until - now_seconds()));
    launch::Descriptor socket = try_to_connect(place, std::min(left, kAddressSeconds), why);
    if (socket.open()) {
      prepare(socket.get());
      return Line(std::move(socket));
    }
    MG_CHECK(now_seconds() < until,
             "rank 0 cannot be reached at {}:{} within {:g} s: {}. MASTER_ADDR must be the host of "
             "rank 0, and its firewall must allow the port ({})",
             place.address, place.port, seconds, why, place.port_by);
    if (!told && now_seconds() > until - seconds + kConnectNotice) {
      told = true;
      log::info("waiting for rank 0 at {}:{} (MASTER_ADDR, MASTER_PORT): {}; {:.0f} s are left",
                place.address, place.port, why, until - now_seconds());
    }
    std::this_thread::sleep_for(kRetryInterval);
  }
}

Reception::Reception(const RendezvousAddress& place) {
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(static_cast<uint16_t>(place.port));
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = six.sin6_port;
  const auto bind = [this](int family, const void* address, socklen_t bytes) {
    socket_ = launch::Descriptor(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket_.open()) return false;
    set(socket_.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (family == AF_INET6) set(socket_.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    return ::bind(socket_.get(), static_cast<const sockaddr*>(address), bytes) == 0;
  };
  // A host may not support IPv6, or have it disabled.
  const bool bound = bind(AF_INET6, &six, sizeof six) ||
                     (errno != EADDRINUSE && errno != EACCES && bind(AF_INET, &four, sizeof four));
  MG_CHECK(bound && ::listen(socket_.get(), SOMAXCONN) == 0,
           "rank 0 cannot listen for the other ranks on port {} ({}): {}; choose another "
           "MASTER_PORT",
           place.port, place.port_by, reason());
}

std::optional<Line> Reception::accept() {
  for (;;) {
    launch::Descriptor socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.open()) {
      prepare(socket.get());
      return Line(std::move(socket));
    }
    if (errno == EINVAL || errno == EBADF) return std::nullopt;
    // Other errors concern one connection, or a lack of descriptors or memory that ends when other
    // connections close.
    if (errno != EINTR && errno != ECONNABORTED) std::this_thread::sleep_for(kRetryInterval);
  }
}

void Reception::shut() { ::shutdown(socket_.get(), SHUT_RDWR); }

}  // namespace megatron::comm
