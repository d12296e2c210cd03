#include "comm/launch/channel.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <system_error>

#include "base/error.h"

namespace megatron::comm::launch {
namespace {

constexpr size_t kHead = 9;

std::string reason(int error) { return std::system_category().message(error); }

// Abstract address of a name: it is not a file, and is visible only on this machine.
sockaddr_un address_of(std::string_view name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  MG_CHECK(!name.empty() && name.size() < sizeof address.sun_path,
           "{} is '{}', which megatron launch cannot have set", kLaunchVariable, name);
  name.copy(address.sun_path + 1, name.size());
  return address;
}

socklen_t size_of_address(std::string_view name) {
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
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
}

void Channel::send(const Message& message) {
  MG_ASSERT(message.text.size() <= kMaxBytes);
  std::string packet(kHead, '\0');
  packet[0] = static_cast<char>(message.kind);
  std::memcpy(packet.data() + 1, &message.a, 4);
  std::memcpy(packet.data() + 5, &message.b, 4);
  packet += message.text;
  queued_ += packet.size();
  out_.push_back(std::move(packet));
  flush();
}

void Channel::flush() {
  while (!out_.empty()) {
    const std::string& packet = out_.front();
    const ssize_t n = ::send(file(), packet.data(), packet.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) {  // the peer is gone, which receive() reports
      out_.clear();
      queued_ = 0;
      return;
    }
    queued_ -= packet.size();
    out_.pop_front();
  }
}

bool Channel::receive(std::vector<Message>& messages) {
  constexpr int kMaxAtOnce = 16;  // limit, so that one rank does not keep others waiting
  char packet[kHead + kMaxBytes];
  for (int i = 0; i < kMaxAtOnce; ++i) {
    const ssize_t n = ::recv(file(), packet, sizeof packet, 0);
    // The other side may have closed before it read everything; what it sent can still be received.
    if (n < 0 && (errno == EINTR || errno == ECONNRESET)) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) return false;
    Message message{.kind = static_cast<MessageKind>(packet[0])};
    MG_CHECK(static_cast<size_t>(n) >= kHead && message.kind >= MessageKind::hello &&
                 message.kind <= MessageKind::release,
             "it carried data that is not a message of megatron launch");
    std::memcpy(&message.a, packet + 1, 4);
    std::memcpy(&message.b, packet + 5, 4);
    message.text.assign(packet + kHead, static_cast<size_t>(n) - kHead);
    messages.push_back(std::move(message));
  }
  return true;
}

Listener listen() {
  Listener listener;
  listener.socket = Descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socklen_t size = sizeof address;
  const int file = listener.socket.get();
  // Without a name, the system chooses a free one.
  MG_CHECK(
      file >= 0 &&
          ::bind(file, reinterpret_cast<const sockaddr*>(&address), sizeof(sa_family_t)) == 0 &&
          ::listen(file, SOMAXCONN) == 0 &&
          ::getsockname(file, reinterpret_cast<sockaddr*>(&address), &size) == 0,
      "cannot open a socket for the ranks: {}", reason(errno));
  listener.name.assign(address.sun_path + 1, size - offsetof(sockaddr_un, sun_path) - 1);
  return listener;
}

Descriptor accept(const Listener& listener) {
  Descriptor socket(::accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ucred user{};
  socklen_t size = sizeof user;
  if (!socket.open() || ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &user, &size) != 0 ||
      user.uid != ::geteuid())
    return Descriptor();
  return socket;
}

Descriptor connect(const std::string& name) {
  const sockaddr_un address = address_of(name);
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  MG_CHECK(socket.open() && ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address),
                                      size_of_address(name)) == 0,
           "megatron launch does not run on this machine: {}; it starts ranks on its own machine "
           "only; for several machines use mpirun or srun",
           reason(errno));
  return socket;
}

}  // namespace megatron::comm::launch
