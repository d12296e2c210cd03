#include "comm/launch/channel.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <system_error>

#include "base/error.h"

namespace megatron::comm::launch {
namespace {

constexpr size_t kHead = 13, kMostBytes = size_t{1} << 20;

std::string reason(int error) { return std::system_category().message(error); }

// A host that is gone without a word is noticed in about a minute.
void set_options(int socket) {
  const auto set = [socket](int level, int name, int value) {
    ::setsockopt(socket, level, name, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_NODELAY, 1);
}

std::string fresh_token() {
  unsigned char bytes[16];
  MG_CHECK(::getrandom(bytes, sizeof bytes, 0) == sizeof bytes,
           "cannot get random bytes from "
           "the system");
  std::string token;
  for (const unsigned char byte : bytes) token += fmt::format("{:02x}", byte);
  return token;
}

// IPv4 addresses of this machine that others may reach.
std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return addresses;
  for (const ifaddrs* a = all; a != nullptr; a = a->ifa_next) {
    const bool usable = a->ifa_addr != nullptr && a->ifa_addr->sa_family == AF_INET &&
                        (a->ifa_flags & IFF_UP) != 0 && (a->ifa_flags & IFF_LOOPBACK) == 0;
    if (!usable) continue;
    char text[INET_ADDRSTRLEN];
    sockaddr_in address;
    std::memcpy(&address, a->ifa_addr, sizeof address);
    if (::inet_ntop(AF_INET, &address.sin_addr, text, sizeof text) != nullptr)
      addresses.emplace_back(text);
  }
  ::freeifaddrs(all);
  return addresses;
}

// Connected within five seconds, or an errno.
int connect_to(int socket, const sockaddr_in& address) {
  constexpr int kMilliseconds = 5000;
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd entry{socket, POLLOUT, 0};
  if (::poll(&entry, 1, kMilliseconds) != 1) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

}  // namespace

void Descriptor::close() {
  if (value_ >= 0) ::close(value_);
  value_ = -1;
}

Pipe make_pipe() {
  int files[2];
  MG_CHECK(::pipe2(files, O_CLOEXEC) == 0, "cannot create a pipe: {}", reason(errno));
  return {Descriptor(files[0]), Descriptor(files[1])};
}

Channel::Channel(Descriptor socket) : socket_(std::move(socket)) {
  ::fcntl(socket_.get(), F_SETFL, O_NONBLOCK);
  set_options(socket_.get());
}

void Channel::send(const Message& message) {
  MG_ASSERT(message.text.size() <= kMostBytes);
  char head[kHead];
  const auto size = static_cast<uint32_t>(message.text.size());
  head[0] = static_cast<char>(message.kind);
  std::memcpy(head + 1, &size, 4);
  std::memcpy(head + 5, &message.a, 4);
  std::memcpy(head + 9, &message.b, 4);
  out_.append(head, kHead).append(message.text);
  flush();
}

void Channel::flush() {
  while (queued() > 0) {
    const ssize_t n = ::send(file(), out_.data() + sent_, queued(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN) sent_ = out_.size();  // gone: receive() tells
    if (n < 0) break;
    sent_ += static_cast<size_t>(n);
  }
  if (queued() == 0 || sent_ > kMostBytes) {
    out_.erase(0, sent_);
    sent_ = 0;
  }
}

bool Channel::receive(std::vector<Message>& messages) {
  constexpr size_t kMostAtOnce = size_t{1} << 20;  // so that one rank does not keep others waiting
  char buffer[65536];
  for (size_t read = 0; read < kMostAtOnce;) {
    const ssize_t n = ::recv(file(), buffer, sizeof buffer, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) gone_ = true;
    if (n <= 0) break;
    in_.append(buffer, static_cast<size_t>(n));
    read += static_cast<size_t>(n);
  }
  size_t at = 0;
  while (in_.size() - at >= kHead) {
    Message message;
    uint32_t size = 0;
    message.kind = static_cast<MessageKind>(in_[at]);
    std::memcpy(&size, in_.data() + at + 1, 4);
    std::memcpy(&message.a, in_.data() + at + 5, 4);
    std::memcpy(&message.b, in_.data() + at + 9, 4);
    MG_CHECK(size <= kMostBytes && message.kind >= MessageKind::hello &&
                 message.kind <= MessageKind::release,
             "a connection to megatron launch carried something that is not one of its messages");
    if (in_.size() - at - kHead < size) break;
    message.text = in_.substr(at + kHead, size);
    messages.push_back(std::move(message));
    at += kHead + size;
  }
  in_.erase(0, at);
  return !gone_;
}

std::string ListenAddress::text() const {
  std::string text = fmt::format("{},{}", token, port);
  for (const std::string& address : addresses) text += "," + address;
  return text;
}

ListenAddress ListenAddress::parse(std::string_view text) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    parts.emplace_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  ListenAddress listen_address;
  MG_CHECK(parts.size() >= 3, "{} is '{}', which megatron launch cannot have set",
           kListenAddressVariable, text);
  listen_address.token = parts[0];
  const auto [end, error] =
      std::from_chars(parts[1].data(), parts[1].data() + parts[1].size(), listen_address.port);
  MG_CHECK(error == std::errc() && end == parts[1].data() + parts[1].size() &&
               listen_address.port > 0 && listen_address.port < 65536,
           "{} names port '{}', which is not a valid port", kListenAddressVariable, parts[1]);
  listen_address.addresses.assign(parts.begin() + 2, parts.end());
  return listen_address;
}

Listener listen(bool other_hosts) {
  Listener listener;
  listener.socket = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(other_hosts ? INADDR_ANY : INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const int file = listener.socket.get();
  MG_CHECK(file >= 0 && ::bind(file, reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
               ::listen(file, SOMAXCONN) == 0 &&
               ::getsockname(file, reinterpret_cast<sockaddr*>(&address), &size) == 0,
           "cannot open a TCP port for the ranks' rendezvous: {}", reason(errno));
  listener.address.token = fresh_token();
  listener.address.port = ntohs(address.sin_port);
  if (other_hosts) listener.address.addresses = own_addresses();
  if (!other_hosts || listener.address.addresses.empty())
    listener.address.addresses.emplace_back("127.0.0.1");
  return listener;
}

Descriptor connect(const ListenAddress& listen_address) {
  std::string tried;
  for (const std::string& text : listen_address.addresses) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(listen_address.port));
    if (::inet_pton(AF_INET, text.c_str(), &address.sin_addr) != 1) continue;
    Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int error = socket.open() ? connect_to(socket.get(), address) : errno;
    if (error == 0) return socket;
    tried += fmt::format("{}{}:{} ({})", tried.empty() ? "" : ", ", text, listen_address.port,
                         reason(error));
  }
  fail("host {} cannot reach megatron launch at {}; is there a firewall between them?", host_name(),
       tried);
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "localhost";
}

}  // namespace megatron::comm::launch
